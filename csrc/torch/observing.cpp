// How a group is watched: the flight recorder's entries, the profiler's events, timing, the
// completion hook, and what memory it takes.
#include <c10/core/Allocator.h>

#include <utility>

#include "torch/process_group.h"
#include "torch/recording.h"

namespace hybridcomm {

using Group = ProcessGroupHybridcomm;

// ---- the flight recorder ------------------------------------------------------------------------

RecordedCall Group::record(const Call& call) {
  RecordedCall recorded;
  if (!FlightRecorder::instance().enabled()) return recorded;
  recorded.group = recorded_as();
  const bool uneven = call.arguments.splits != 0;
  recorded.name = recorded_name(call.kind.type, call.kind.name, uneven);
  // Of uneven calls only what all ranks have alike: the list's lengths in all.
  const bool lists_inputs = call.inputs.size() > call.outputs.size();
  recorded.input = outline(uneven && !lists_inputs ? call.outputs : call.inputs);
  recorded.output = outline(uneven && lists_inputs ? call.inputs : call.outputs);
  if (records_frames_) recorded.frames = current_frames();
  return recorded;
}

RecordedCall Group::record(const MessageArguments& arguments, const char* name,
                           const Tensors& tensors) {
  RecordedCall recorded;
  if (!FlightRecorder::instance().enabled()) return recorded;
  recorded.group = recorded_as();
  recorded.name = name;
  recorded.message = true;
  recorded.receives = arguments.kind == MessageArguments::Kind::kRecv;
  recorded.peer = arguments.peer;
  (recorded.receives ? recorded.output : recorded.input) = outline(tensors);
  if (records_frames_) recorded.frames = current_frames();
  return recorded;
}

// At the first operation, when torch has told the group its description.
uint32_t Group::recorded_as() {
  std::call_once(recorded_, [this] {
    FlightRecorder::Group group;
    group.name = group_;
    group.description = pg_desc_.empty() ? "undefined" : pg_desc_;
    group.rank = static_cast<uint32_t>(rank_);
    group.global_ranks = global_ranks();
    recorded_as_ = FlightRecorder::instance().add_group(std::move(group));
  });
  return *recorded_as_;
}

std::vector<uint64_t> Group::global_ranks() const {
  std::vector<uint64_t> ranks;
  for (int rank = 0; rank < size_; ++rank) ranks.push_back(global_rank(rank));
  return ranks;
}

// ---- the profiler -------------------------------------------------------------------------------

void Group::profile(const Call& call, bool async, ProfilerEvent& event) const {
  ProfiledCall profiled{communicator_->sequence() + 1,
                        false,
                        group_,
                        pg_desc_,
                        global_ranks(),
                        rank_,
                        call.kind.name,
                        async,
                        call.inputs,
                        call.outputs,
                        {},
                        {}};
  if (call.kind.type == c10d::OpType::ALLTOALL_BASE) {
    const uint64_t element = dtype_size(call.arguments.dtype);
    const auto count = [element](const Buffer& buffer) {
      return static_cast<int64_t>(buffer.bytes / element);
    };
    for (const Buffer& part : call.arguments.inputs) profiled.input_splits.push_back(count(part));
    for (const Buffer& part : call.arguments.outputs) profiled.output_splits.push_back(count(part));
  }
  event.begin(profiled);
}

void Group::profile(const MessageArguments& arguments, const char* name, const Tensors& tensors,
                    ProfilerEvent& event) const {
  event.begin({messenger_->sequence() + 1,
               true,
               group_,
               pg_desc_,
               global_ranks(),
               arguments.peer,
               name,
               true,
               tensors,
               tensors,
               {},
               {}});
}

// ---- timing and hooks ---------------------------------------------------------------------------

void Group::enableCollectivesTiming() { observers_->enable_timing(); }

void Group::registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  TORCH_CHECK(onCompletionHook_ == nullptr, "group '", group_, "' has a completion hook already");
  // It may hold a Python object, which must not be copied without the interpreter's lock.
  const auto shared = std::make_shared<Observers::Hook>(std::move(hook));
  onCompletionHook_ = [shared](const std::shared_ptr<c10d::WorkInfo>& info) { (*shared)(info); };
  observers_->set_hook(onCompletionHook_);
}

void Group::waitForPendingWorks() { observers_->wait_for_pending(); }

// ---- memory -------------------------------------------------------------------------------------

// Ordinary memory: what goes to other ranks is copied into slots from wherever it lies.
std::shared_ptr<c10::Allocator> Group::getMemAllocator() {
  return {c10::GetAllocator(c10::kCPU), [](c10::Allocator*) {}};
}

at::Tensor Group::allocateTensor(long size, at::TensorOptions options) {
  if (!options.device().is_cpu()) {
    CallSite("allocate_tensor", rank_, group_)
        .refuse("device", options.device().str() + "; this backend's tensors lie in host memory");
  }
  return at::empty({size}, options);
}

std::unordered_map<std::string, uint64_t> Group::getMemoryStats() {
  const Messenger::Mapped messages = messenger_->mapped();
  return {{"collectives_mapped_bytes", communicator_->mapped_bytes()},
          {"messages_mapped_bytes", messages.bytes},
          {"message_pairs", messages.pairs}};
}

}  // namespace hybridcomm
