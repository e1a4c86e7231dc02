// Entries in torch's format.
//
// torch has a recorder of its own, a template of which its libraries export no instance, and whose
// entries cost a traceback each. Its analyzer (torch.distributed.flight_recorder) reads the dump
// made here; where our operations have no counterpart in it, they are put in its terms:
//
//   names     begin with the name of a library that the analyzer knows; "gloo" is torch's for host
//             memory
//   messages  belong to a group of the two ranks, in which both count alike what goes one way (odd
//             numbers) and the other (even ones). In the group of all, the analyzer would expect
//             every rank to take part in every message.
#include "torch/recording.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>

#include <torch/csrc/jit/serialization/pickler.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>

namespace hybridcomm {
namespace {

using c10d::OpType;
using Dict = c10::Dict<c10::IValue, c10::IValue>;
using List = c10::List<c10::IValue>;

constexpr const char* kVersion = "2.10";
constexpr const char* kPrefix = "gloo:";

Dict new_dict() { return Dict(c10::AnyType::get(), c10::AnyType::get()); }
List new_list() { return List(c10::AnyType::get()); }

// ---- times --------------------------------------------------------------------------------------

// From the clock that operations are timed by to the time of day.
class TimeOfDay {
 public:
  int64_t nanoseconds(Clock::time_point at) const {
    return (std::chrono::nanoseconds(at - steady_) + since_1970_).count();
  }
  c10::IValue if_any(Clock::time_point at) const {
    return at == Clock::time_point{} ? c10::IValue() : c10::IValue(nanoseconds(at));
  }

 private:
  const Clock::time_point steady_ = Clock::now();
  const std::chrono::nanoseconds since_1970_ = std::chrono::system_clock::now().time_since_epoch();
};

// ---- groups -------------------------------------------------------------------------------------

std::string ranks_text(const std::vector<uint64_t>& ranks) {
  std::string text = "[";
  for (const uint64_t rank : ranks) text += (text.size() > 1 ? ", " : "") + std::to_string(rank);
  return text + "]";
}

// One of the analyzer's groups: (name, description) and the ranks of the job in it.
struct Group {
  std::string name;
  std::string description;
  std::vector<uint64_t> ranks;
};

// The group that an entry is put under.
Group group_of(const FlightRecorder::Group& group, const FlightRecorder::Entry& entry) {
  const RecordedCall& call = entry.call;
  if (!call.message) return {group.name, group.description, group.global_ranks};
  // It may yet be matched with any.
  if (call.peer < 0) return {group.name + ":any", group.description, group.global_ranks};
  const auto peer = static_cast<uint32_t>(call.peer);
  const auto [low, high] = std::minmax(group.rank, peer);
  return {group.name + ":" + std::to_string(low) + "-" + std::to_string(high),
          group.description,
          {group.global_ranks[low], group.global_ranks[high]}};
}

Dict config(const std::map<std::string, Group>& groups) {
  Dict all = new_dict();
  for (const auto& [name, group] : groups) {
    Dict one = new_dict();
    one.insert("name", name);
    one.insert("desc", group.description);
    one.insert("ranks", ranks_text(group.ranks));
    all.insert(name, one);
  }
  return all;
}

Dict status(const std::vector<FlightRecorder::Status>& groups) {
  Dict all = new_dict();
  const auto number = [](uint64_t sequence) {
    return sequence == 0 ? int64_t{-1} : static_cast<int64_t>(sequence);
  };
  for (size_t i = 0; i < groups.size(); ++i) {
    Dict one = new_dict();
    one.insert("last_enqueued_collective", number(groups[i].enqueued));
    one.insert("last_started_collective", number(groups[i].started));
    one.insert("last_completed_collective", number(groups[i].completed));
    all.insert(std::to_string(i), one);
  }
  return all;
}

// ---- entries ------------------------------------------------------------------------------------

List sizes(const Outline& outline) {
  List all = new_list();
  if (!outline.given) return all;
  List one = new_list();
  for (uint8_t i = 0; i < outline.dimensions; ++i) one.push_back(outline.sizes[i]);
  all.push_back(one);
  return all;
}

List dtypes(const Outline& outline) {
  List all = new_list();
  if (outline.given) {
    all.push_back(std::string(c10::toString(static_cast<at::ScalarType>(outline.element))));
  }
  return all;
}

// In the analyzer's terms, where the two ranks of a message are 0 and 1.
std::string profiling_name(const RecordedCall& call, uint32_t rank) {
  std::string name = kPrefix + std::string(call.name);
  if (!call.message) return name;
  int own = static_cast<int>(rank), peer = call.peer;
  if (peer >= 0) {
    own = own < peer ? 0 : 1;
    peer = 1 - own;
  }
  return name + " " + std::to_string(own) + (call.receives ? "<-" : "->") + std::to_string(peer);
}

int64_t collective_number(const FlightRecorder::Entry& entry, uint32_t rank) {
  const RecordedCall& call = entry.call;
  if (!call.message) return static_cast<int64_t>(entry.sequence);
  if (call.peer < 0) return 0;
  const bool upward = call.receives == (call.peer < static_cast<int>(rank));
  return static_cast<int64_t>(2 * entry.turn - (upward ? 1 : 0));
}

Dict describe(const FlightRecorder::Entry& entry, const FlightRecorder::Recording& recording,
              const Group& group, const TimeOfDay& time) {
  const RecordedCall& call = entry.call;
  const uint32_t number = call.group - recording.first_group;
  const uint32_t rank = recording.groups[number].rank;
  const bool begun = entry.started != Clock::time_point{};
  const bool ended = entry.ended != Clock::time_point{};
  const bool completed = ended && entry.error == ErrorKind::kNone;
  std::ostringstream thread;
  thread << entry.thread;
  Dict d = new_dict();
  d.insert("record_id", static_cast<int64_t>(entry.ticket - recording.first));
  d.insert("pg_id", static_cast<int64_t>(number));
  d.insert("process_group", std::make_tuple(group.name, group.description));
  d.insert("thread_name", "");
  d.insert("thread_id", thread.str());
  d.insert("collective_seq_id", collective_number(entry, rank));
  d.insert("p2p_seq_id", static_cast<int64_t>(call.message ? entry.sequence : 0));
  d.insert("op_id", static_cast<int64_t>(entry.sequence));
  d.insert("profiling_name", profiling_name(call, rank));
  d.insert("time_created_ns", time.nanoseconds(entry.created));
  if (completed && begun) {
    d.insert("duration_ms",
             std::chrono::duration<double, std::milli>(entry.ended - entry.started).count());
  }
  d.insert("input_sizes", sizes(call.input));
  d.insert("input_dtypes", dtypes(call.input));
  d.insert("output_sizes", sizes(call.output));
  d.insert("output_dtypes", dtypes(call.output));
  d.insert("state", completed ? "completed" : begun ? "started" : "scheduled");
  d.insert("time_discovered_started_ns", time.if_any(entry.started));
  d.insert("time_discovered_completed_ns",
           time.if_any(completed ? entry.ended : Clock::time_point{}));
  d.insert("retired", ended);
  d.insert("timeout_ms", static_cast<int64_t>(entry.timeout.count()));
  d.insert("is_p2p", call.message);
  return d;
}

// ---- frames -------------------------------------------------------------------------------------

// The frames of each entry that has some, to its description.
void add_frames(const std::vector<FlightRecorder::Entry>& entries,
                std::vector<Dict>& descriptions) {
  std::vector<torch::CapturedTraceback*> captured;
  std::vector<size_t> whose;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].call.frames == nullptr) continue;
    captured.push_back(static_cast<torch::CapturedTraceback*>(entries[i].call.frames.get()));
    whose.push_back(i);
  }
  if (captured.empty()) return;
  const torch::SymbolizedTracebacks named = torch::symbolize(captured);
  for (size_t i = 0; i < whose.size(); ++i) {
    List frames = new_list();
    for (const uint64_t at : named.tracebacks[i]) {
      Dict frame = new_dict();
      frame.insert("name", named.all_frames[at].funcname);
      frame.insert("filename", named.all_frames[at].filename);
      frame.insert("line", static_cast<int64_t>(named.all_frames[at].lineno));
      frames.push_back(frame);
    }
    descriptions[whose[i]].insert("frames", frames);
  }
}

std::string pickled(const c10::IValue& value) {
  std::string bytes;
  torch::jit::Pickler pickler([&](const char* data, size_t size) { bytes.append(data, size); },
                              nullptr, nullptr, nullptr, nullptr, false);
  pickler.protocol();
  pickler.pushIValue(value);
  pickler.stop();
  return bytes;
}

}  // namespace

// ---- entering -----------------------------------------------------------------------------------

const char* recorded_name(OpType type, const char* name, bool uneven) {
  switch (type) {
    case OpType::_ALLGATHER_BASE: return "_all_gather_base";
    case OpType::_REDUCE_SCATTER_BASE: return "_reduce_scatter_base";
    // Of this the analyzer knows that sizes may differ from rank to rank.
    case OpType::ALLTOALL_BASE: return "all_to_all";
    // Names under which it does not multiply one rank's size by the world size.
    case OpType::ALLGATHER: return uneven ? "ALLGATHER_coalesced" : name;
    case OpType::REDUCE_SCATTER: return uneven ? "REDUCE_SCATTER_coalesced" : name;
    default: return name;
  }
}

Outline outline(const std::vector<at::Tensor>& tensors) {
  Outline result;
  if (tensors.empty()) return result;
  const at::Tensor& first = tensors.front();
  result.given = true;
  result.element = static_cast<uint8_t>(first.scalar_type());
  const c10::IntArrayRef shape = first.sizes();
  const size_t many = tensors.size() > 1 ? 1 : 0;
  bool alike = many + shape.size() <= Outline::kMostDimensions;
  int64_t elements = first.numel();
  for (size_t i = 1; i < tensors.size(); ++i) {
    alike = alike && tensors[i].sizes() == shape;
    elements += tensors[i].numel();
  }
  if (!alike) {
    result.dimensions = 1;
    result.sizes[0] = elements;
    return result;
  }
  if (many != 0) result.sizes[0] = static_cast<int64_t>(tensors.size());
  std::copy(shape.begin(), shape.end(), result.sizes.begin() + many);
  result.dimensions = static_cast<uint8_t>(many + shape.size());
  return result;
}

bool frames_wanted() {
  const char* const text = std::getenv("HYBRIDCOMM_FR_FRAMES");
  return text != nullptr && std::string(text) == "1";
}

std::shared_ptr<void> current_frames() {
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, /*cpp=*/false);
}

// ---- dumping ------------------------------------------------------------------------------------

std::string dump_flight_recorder(bool only_active) {
  FlightRecorder::Recording recording = FlightRecorder::instance().recording();
  if (only_active) {
    std::erase_if(recording.entries, [](const FlightRecorder::Entry& entry) {
      return entry.ended != Clock::time_point{} && entry.error == ErrorKind::kNone;
    });
  }
  const TimeOfDay time;
  std::map<std::string, Group> groups;
  for (const FlightRecorder::Group& group : recording.groups) {
    groups.insert_or_assign(group.name, Group{group.name, group.description, group.global_ranks});
  }
  std::vector<Dict> descriptions;
  for (const FlightRecorder::Entry& entry : recording.entries) {
    Group group = group_of(recording.groups[entry.call.group - recording.first_group], entry);
    descriptions.push_back(describe(entry, recording, group, time));
    groups.try_emplace(group.name, std::move(group));
  }
  add_frames(recording.entries, descriptions);
  List entries = new_list();
  for (Dict& description : descriptions) entries.push_back(std::move(description));

  Dict dump = new_dict();
  dump.insert("version", kVersion);
  dump.insert("comm_lib_version", "hybridcomm");
  dump.insert("pg_config", config(groups));
  dump.insert("pg_status", status(recording.status));
  dump.insert("entries", entries);
  return pickled(dump);
}

void dump_after(ErrorKind failure, uint64_t rank) {
  if (failure == ErrorKind::kAborted || !FlightRecorder::instance().enabled()) return;
  const char* prefix = std::getenv("TORCH_FR_DUMP_TEMP_FILE");
  if (prefix == nullptr) prefix = std::getenv("TORCH_NCCL_DEBUG_INFO_TEMP_FILE");
  if (prefix == nullptr || *prefix == '\0') return;
  const std::string path = prefix + std::to_string(rank);
  try {
    const std::string bytes = dump_flight_recorder(/*only_active=*/false);
    // Several operations may fail at once, on several threads.
    static std::mutex* const mutex = new std::mutex;
    const std::lock_guard<std::mutex> lock(*mutex);
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    file.close();
    if (!file) throw std::runtime_error("it cannot be written");
  } catch (const std::exception& error) {
    TORCH_WARN("hybridcomm: the flight recorder's dump to ", path, " failed: ", error.what());
  }
}

}  // namespace hybridcomm
