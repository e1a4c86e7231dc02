// The flat binary form of a program (docs/program-format.md) and its validation.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/platform.h"

namespace hybridcomm {

enum class Collective : uint16_t {
  kAllReduce = 1,
  kBroadcast = 2,
  kAllGather = 3,
  kBarrier = 4,
  kReduceScatter = 5,
  kAllToAll = 6,
  kReduce = 7,
  kGather = 8,
  kScatter = 9,
  kSendRecv = 10,
};

// torch's name of it: "all_reduce".
const char* collective_name(Collective collective);

enum class StepOp : uint8_t {
  kSend = 1,
  kRecv = 2,
  kCopy = 3,
  kRecvReduce = 4,
  kRecvCopySend = 5,
  kRecvReduceSend = 6,
  kRecvReduceCopySend = 7,
  kReadReduce = 8,
  kWrite = 9,
  kSignal = 10,
  kWait = 11,
};

inline constexpr uint32_t kNoChunk = 0xffffffffu;
inline constexpr uint8_t kFinish = 1;  // Step::flags: this reduction completes the value

// One step: exactly the 32 bytes of the flat form.
struct Step {
  StepOp op;
  uint8_t flags;
  uint16_t n_from;
  uint16_t n_to;
  uint16_t reserved0;
  uint32_t src;      // chunk of this rank, or kNoChunk
  uint32_t dst;      // chunk of this rank, or kNoChunk
  uint32_t remote;   // chunk of the peer, for read_reduce and write
  uint32_t from_at;  // peers[from_at .. from_at + n_from)
  uint32_t to_at;
  uint32_t reserved1;
};
static_assert(sizeof(Step) == 32);

// What the executor reads: plain pointers, so that a device can be handed a copy.
struct ProgramView {
  const Step* steps;
  const uint32_t* channel_begin;  // [channels + 1]
  const uint32_t* peers;
  uint32_t rank;
  uint32_t world;
  uint32_t channels;
};

// One rank's program. Immutable; shared by every operation that runs it.
class Program {
 public:
  // Parses and validates the flat form: every index, every peer, every step's shape. Throws
  // CommError(kInvalid) naming the field, for the bytes may come from a file.
  static std::shared_ptr<const Program> parse(std::span<const std::byte> bytes);

  Collective collective() const { return collective_; }
  uint32_t rank() const { return rank_; }
  uint32_t world() const { return world_; }
  uint32_t channels() const { return channels_; }
  uint32_t inputs() const { return inputs_; }
  uint32_t outputs() const { return outputs_; }
  uint32_t temporaries() const { return temporaries_; }
  uint32_t chunks() const { return inputs_ + outputs_ + temporaries_; }
  uint32_t root() const { return root_; }
  uint32_t min_slots() const { return min_slots_; }
  bool deterministic() const { return deterministic_; }
  // True if it reads or writes memory of its peers directly.
  bool one_sided() const { return one_sided_; }
  // The most operands that one reduction of it takes, its own included.
  uint32_t max_operands() const { return max_operands_; }
  ProgramView view() const {
    return {steps_.data(), channel_begin_.data(), peers_.data(), rank_, world_, channels_};
  }

 private:
  Program() = default;

  Collective collective_{};
  uint32_t rank_ = 0, world_ = 0, channels_ = 0;
  uint32_t inputs_ = 0, outputs_ = 0, temporaries_ = 0;
  uint32_t root_ = 0, min_slots_ = 0, max_operands_ = 0;
  bool deterministic_ = false;
  bool one_sided_ = false;
  std::vector<uint32_t> channel_begin_;
  std::vector<Step> steps_;
  std::vector<uint32_t> peers_;
};

}  // namespace hybridcomm
