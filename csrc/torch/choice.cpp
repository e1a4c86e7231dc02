// The choices, and the cache of compiled programs.
#include "torch/choice.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace py = pybind11;

namespace hybridcomm {
namespace {

constexpr uint64_t kSlotBytes = 512 << 10;  // of a link between two ranks
constexpr uint64_t kLeastSlotBytes = 64 << 10;
constexpr uint32_t kSlots = 4;
// A root that sends to each rank itself is fastest while it can write to all of them at once.
constexpr uint32_t kMostDirectReaders = 4;

bool is_integer(DType dtype) { return dtype >= DType::kUInt8 && dtype <= DType::kInt64; }

bool reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter;
}

// Of the collectives that reduce.
bool is_deterministic(Collective collective, const std::string& algorithm) {
  if (collective == Collective::kAllReduce) {
    return algorithm == "two_shot" || algorithm == "one_shot";
  }
  return algorithm == "direct";
}

std::string default_algorithm(Collective collective, uint32_t world, bool deterministic) {
  const bool few = world <= kMostDirectReaders;
  switch (collective) {
    case Collective::kAllReduce: return "two_shot";
    case Collective::kBroadcast: return few ? "direct" : "binomial";
    case Collective::kReduce: return few || deterministic ? "direct" : "binomial";
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
    // The root takes in or gives out every byte itself whatever the algorithm.
    case Collective::kGather:
    case Collective::kScatter: return "direct";
    case Collective::kBarrier: return "dissemination";
    case Collective::kSendRecv: break;
  }
  throw CommError(ErrorKind::kInvalid,
                  std::string(collective_name(collective)) + " has no algorithm");
}

thread_local CallPreferences current_preferences;

struct Key {
  Collective collective;
  std::string algorithm;
  uint32_t world;
  uint32_t rank;
  uint32_t root;
  uint32_t channels;

  bool operator==(const Key&) const = default;
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    size_t hash = std::hash<std::string>()(key.algorithm);
    for (const uint32_t part :
         {static_cast<uint32_t>(key.collective), key.world, key.rank, key.root, key.channels}) {
      hash = hash * 0x9e3779b97f4a7c15u + part;
    }
    return hash;
  }
};

// Never destroyed: the progress thread may outlive static objects.
struct Cache {
  std::mutex mutex;
  std::unordered_map<Key, std::shared_ptr<const Program>, KeyHash> programs;
};
Cache& cache() {
  static Cache* const all = new Cache;
  return *all;
}

std::shared_ptr<const Program> compile(const Key& key, std::optional<uint32_t> root) {
  const py::gil_scoped_acquire gil;
  const py::bytes flat = py::module_::import("hybridcomm.programs.registry")
                             .attr("compile_flat")(collective_name(key.collective), key.algorithm,
                                                   key.world, key.rank, root, key.channels);
  const std::string_view bytes = flat;
  return Program::parse(std::as_bytes(std::span(bytes)));
}

}  // namespace

shm::Shape choose_shape(uint32_t world, const Preferences& preferences) {
  shm::Shape shape;
  shape.world = world;
  shape.channels = preferences.channels.value_or(1);
  shape.slots = preferences.slots.value_or(kSlots);
  // Each rank holds one ring for every other rank: the more ranks, the smaller the slots.
  const uint64_t share = 2 * kSlotBytes / std::bit_ceil(uint64_t{std::max(world, 2u)});
  shape.slot_bytes = preferences.slot_bytes.value_or(std::max(share, kLeastSlotBytes));
  return shape;
}

CallPreferences exchange_call_preferences(CallPreferences preferences) {
  return std::exchange(current_preferences, std::move(preferences));
}

const CallPreferences& call_preferences() { return current_preferences; }

std::string choose_algorithm(Collective collective, DType dtype, RedOp op, uint32_t world,
                             const Preferences& preferences) {
  const char* const name = collective_name(collective);
  // The exact sum does not fit the dtype, so it must be divided by the step that adds it up.
  const bool exact = reduces(collective) && op == RedOp::kAvg && is_integer(dtype);
  const bool deterministic = reduces(collective) && (exact || current_preferences.deterministic);
  const auto fits = [&](const std::string& algorithm) {
    return !deterministic || is_deterministic(collective, algorithm);
  };
  if (!current_preferences.algorithm.empty()) {
    if (fits(current_preferences.algorithm)) return current_preferences.algorithm;
    throw CommError(ErrorKind::kInvalid, std::string("argument algorithm: ") + name + " by " +
                                             current_preferences.algorithm +
                                             " rounds more than once, and " +
                                             (exact ? "AVG of integers" : "deterministic=True") +
                                             " needs a single reduction in rank order; use " +
                                             default_algorithm(collective, world, true));
  }
  const auto preferred = preferences.algorithms.find(name);
  if (preferred != preferences.algorithms.end() && fits(preferred->second)) {
    return preferred->second;
  }
  return default_algorithm(collective, world, deterministic);
}

std::shared_ptr<const Program> find_program(Collective collective, const std::string& algorithm,
                                            uint32_t world, uint32_t rank,
                                            std::optional<uint32_t> root, uint32_t channels) {
  Key key{collective, algorithm, world, rank, root.value_or(shm::kNoRoot), channels};
  Cache& all = cache();
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.programs.find(key);
    if (found != all.programs.end()) return found->second;
  }
  // Not under the lock: whoever holds the interpreter's lock may be waiting for ours.
  std::shared_ptr<const Program> program = compile(key, root);
  const std::lock_guard<std::mutex> lock(all.mutex);
  return all.programs.try_emplace(std::move(key), std::move(program)).first->second;
}

}  // namespace hybridcomm
