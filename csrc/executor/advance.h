// The executor: carries out as many of a program's steps as can be done without waiting, and says
// what it is blocked on. One host thread multiplexes many executions with it; a CUDA block wraps it
// in a loop. It never waits by itself.
//
// The unit of progress is one slot. A step is over when all slots of its chunk's window have moved;
// a fused step forwards slot by slot. The whole program is run once for each segment, a window of
// `window` bytes of every chunk, so that a proof made for one small pass holds for any size.
#pragma once

#include "base/atomic.h"
#include "base/group.h"
#include "base/platform.h"
#include "executor/phase.h"
#include "executor/program.h"
#include "transports/link.h"

namespace hybridcomm {

// An entry of the call's table.
struct Chunk {
  std::byte* data;
  uint64_t bytes;
};

// Where one channel of an execution stands.
struct Lane {
  uint64_t segment = 0;
  uint64_t offset = 0;  // within the step's window
  uint32_t step = 0;    // index into ProgramView::steps
};

// Everything about one call that does not change while it runs, and its lanes.
struct Execution {
  ProgramView program{};
  const Chunk* chunks = nullptr;  // [inputs + outputs + temporaries]
  const Chunk* remote = nullptr;  // [world][the same], for one-sided steps; else null
  uint32_t n_chunks = 0;
  uint64_t window = 0;  // bytes of each chunk in one segment; a multiple of slot_bytes
  uint64_t segments = 1;
  uint64_t slot_bytes = 0;
  Reducer reducer{};
  uint32_t divisor = 0;             // for finishing reductions: world size if AVG, else 0
  LinkOut* out = nullptr;           // [channel][to]
  LinkIn* in = nullptr;             // [channel][from]
  Lane* lanes = nullptr;            // [channels]
  const void** operands = nullptr;  // [channels][max_operands], scratch
  uint32_t max_operands = 0;
  uint32_t* phase = nullptr;  // a Phase; null on a device
};

enum class Outcome : uint8_t {
  kDone,
  kProgressed,  // more can be done at once: the budget ran out
  kBlocked,     // on `peer`: its data if `receiving`, else a free slot
  kCorrupt,     // `peer` sent a message of `size` bytes where `expected` were due
};

struct Progress {
  Outcome outcome = Outcome::kDone;
  bool receiving = false;
  uint32_t peer = 0;
  uint32_t channel = 0;
  uint64_t size = 0;
  uint64_t expected = 0;
};

namespace detail {

// Reductions that are also stored or sent go block by block, so that what was just computed is
// still in the first-level cache when it is copied.
inline constexpr uint64_t kBlock = 16 * 1024;

template <class Group>
HC_HOST_DEVICE inline void set_phase(Group& group, const Execution& x, Phase phase) {
  if (x.phase != nullptr && group.leader()) store_relaxed(*x.phase, static_cast<uint32_t>(phase));
}

HC_HOST_DEVICE inline uint64_t window_bytes(const Execution& x, uint32_t chunk, uint64_t segment) {
  const uint64_t begin = segment * x.window;
  const uint64_t bytes = x.chunks[chunk].bytes;
  if (bytes <= begin) return 0;
  return bytes - begin < x.window ? bytes - begin : x.window;
}

HC_HOST_DEVICE inline bool is_token(StepOp op) {
  return op == StepOp::kSignal || op == StepOp::kWait;
}

HC_HOST_DEVICE inline bool is_one_sided(StepOp op) {
  return op == StepOp::kReadReduce || op == StepOp::kWrite;
}

// Lists the operands of a reduction in ascending rank order, this rank's own at its place.
// `operand_of(peer)` is where a peer's contribution lies.
template <class OperandOf>
HC_HOST_DEVICE inline uint32_t list_operands(const Execution& x, const Step& step,
                                             const void** operands, const void* own,
                                             OperandOf&& operand_of) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < step.n_from; ++i) {
    const uint32_t peer = x.program.peers[step.from_at + i];
    if (own != nullptr && peer > x.program.rank) {
      operands[n++] = own;
      own = nullptr;
    }
    operands[n++] = operand_of(peer);
  }
  if (own != nullptr) operands[n++] = own;
  return n;
}

// Reduces `bytes` bytes into `to`, and copies the result to the current slot of each link of the
// step. With `to` null the first of those slots is the destination.
template <class Group>
HC_HOST_DEVICE inline void reduce_and_send(Group& group, const Execution& x, const Step& step,
                                           LinkOut* out, std::byte* to, const void** operands,
                                           uint32_t n_operands, uint64_t bytes) {
  const uint32_t* receivers = x.program.peers + step.to_at;
  uint32_t first_copy = 0;
  if (to == nullptr) {
    to = out[receivers[0]].slot();
    first_copy = 1;
  }
  const uint32_t divisor = (step.flags & kFinish) != 0 ? x.divisor : 0;
  for (uint64_t at = 0; at < bytes; at += kBlock) {
    const uint64_t size = bytes - at < kBlock ? bytes - at : kBlock;
    group.reduce(x.reducer, to + at, operands, n_operands, size, divisor);
    group.sync();
    for (uint32_t i = first_copy; i < step.n_to; ++i) {
      group.copy(out[receivers[i]].slot() + at, to + at, size);
    }
    if (group.leader()) {
      for (uint32_t i = 0; i < n_operands; ++i) {
        operands[i] = static_cast<const std::byte*>(operands[i]) + size;
      }
    }
    group.sync();
  }
}

// Does one slot's worth of `step`: `bytes` bytes at `at` of its chunks, every link being ready.
template <class Group>
HC_HOST_DEVICE inline void move(Group& group, const Execution& x, const Step& step,
                                uint32_t channel, uint64_t at, uint64_t bytes) {
  LinkOut* out = x.out + uint64_t{channel} * x.program.world;
  LinkIn* in = x.in + uint64_t{channel} * x.program.world;
  const uint32_t* senders = x.program.peers + step.from_at;
  const uint32_t* receivers = x.program.peers + step.to_at;
  const void** operands = x.operands + uint64_t{channel} * x.max_operands;
  const std::byte* src = step.src == kNoChunk ? nullptr : x.chunks[step.src].data + at;
  std::byte* dst = step.dst == kNoChunk ? nullptr : x.chunks[step.dst].data + at;
  switch (step.op) {
    case StepOp::kSend:
      set_phase(group, x, Phase::kSend);
      for (uint32_t i = 0; i < step.n_to; ++i) group.copy(out[receivers[i]].slot(), src, bytes);
      break;
    case StepOp::kRecv:
      set_phase(group, x, Phase::kReceive);
      group.copy(dst, in[senders[0]].slot(), bytes);
      break;
    case StepOp::kCopy:
      if (dst != src) group.copy(dst, src, bytes);
      break;
    case StepOp::kRecvCopySend: {
      set_phase(group, x, Phase::kForward);
      const std::byte* slot = in[senders[0]].slot();
      group.copy(dst, slot, bytes);
      for (uint32_t i = 0; i < step.n_to; ++i) group.copy(out[receivers[i]].slot(), slot, bytes);
      break;
    }
    case StepOp::kRecvReduce:
    case StepOp::kRecvReduceSend:
    case StepOp::kRecvReduceCopySend: {
      set_phase(group, x, Phase::kReduce);
      uint32_t n = step.n_from + 1;
      if (group.leader()) {
        n = list_operands(x, step, operands, src,
                          [&](uint32_t peer) -> const void* { return in[peer].slot(); });
      }
      group.sync();
      reduce_and_send(group, x, step, out, dst, operands, n, bytes);
      break;
    }
    case StepOp::kReadReduce: {
      set_phase(group, x, Phase::kReduce);
      uint32_t n = step.n_from + (src == nullptr ? 0 : 1);
      if (group.leader()) {
        n = list_operands(x, step, operands, src, [&](uint32_t peer) -> const void* {
          return x.remote[uint64_t{peer} * x.n_chunks + step.remote].data + at;
        });
      }
      group.sync();
      reduce_and_send(group, x, step, out, dst, operands, n, bytes);
      break;
    }
    case StepOp::kWrite:
      set_phase(group, x, Phase::kSend);
      for (uint32_t i = 0; i < step.n_to; ++i) {
        group.copy(x.remote[uint64_t{receivers[i]} * x.n_chunks + step.remote].data + at, src,
                   bytes);
      }
      break;
    case StepOp::kSignal:
    case StepOp::kWait: set_phase(group, x, Phase::kSignal); break;
  }
}

// True if every link that the step uses is ready. Otherwise `progress` says which is not.
template <class Group>
HC_HOST_DEVICE inline bool links_ready(Group& group, const Execution& x, const Step& step,
                                       uint32_t channel, uint64_t bytes, Progress& progress) {
  LinkOut* out = x.out + uint64_t{channel} * x.program.world;
  LinkIn* in = x.in + uint64_t{channel} * x.program.world;
  for (uint32_t i = 0; i < step.n_from; ++i) {
    const uint32_t peer = x.program.peers[step.from_at + i];
    if (!group.uniform(group.leader() && in[peer].ready())) {
      progress = {Outcome::kBlocked, true, peer, channel, 0, 0};
      return false;
    }
    const uint64_t size = in[peer].size();
    if (size != bytes) {
      progress = {Outcome::kCorrupt, true, peer, channel, size, bytes};
      return false;
    }
  }
  for (uint32_t i = 0; i < step.n_to; ++i) {
    const uint32_t peer = x.program.peers[step.to_at + i];
    if (!group.uniform(group.leader() && out[peer].ready())) {
      progress = {Outcome::kBlocked, false, peer, channel, 0, 0};
      return false;
    }
  }
  return true;
}

template <class Group>
HC_HOST_DEVICE inline void hand_over(Group& group, const Execution& x, const Step& step,
                                     uint32_t channel, uint64_t bytes) {
  group.sync();
  if (!group.leader()) return;
  LinkOut* out = x.out + uint64_t{channel} * x.program.world;
  LinkIn* in = x.in + uint64_t{channel} * x.program.world;
  for (uint32_t i = 0; i < step.n_from; ++i) {
    in[x.program.peers[step.from_at + i]].release_slot();
  }
  for (uint32_t i = 0; i < step.n_to; ++i) {
    out[x.program.peers[step.to_at + i]].publish_slot(static_cast<uint32_t>(bytes));
  }
}

}  // namespace detail

// Advances one channel by at most `budget` slots.
template <class Group>
HC_HOST_DEVICE Progress advance_lane(Group& group, const Execution& x, uint32_t channel,
                                     uint32_t budget) {
  Lane lane = x.lanes[channel];
  const uint32_t first = x.program.channel_begin[channel];
  const uint32_t end = x.program.channel_begin[channel + 1];
  Progress progress;
  progress.channel = channel;
  bool moved = false;
  if (lane.step < first) lane.step = first;
  while (lane.segment < x.segments) {
    if (lane.step == end) {
      lane.step = first;
      lane.offset = 0;
      ++lane.segment;
      continue;
    }
    const Step& step = x.program.steps[lane.step];
    const bool token = detail::is_token(step.op);
    const uint32_t measure = step.dst != kNoChunk ? step.dst : step.src;
    const uint64_t window = token ? 0 : detail::window_bytes(x, measure, lane.segment);
    if (!token && lane.offset >= window) {
      ++lane.step;
      lane.offset = 0;
      continue;
    }
    if (budget == 0) {
      progress.outcome = Outcome::kProgressed;
      break;
    }
    const uint64_t left = window - lane.offset;
    const uint64_t bytes = left < x.slot_bytes ? left : x.slot_bytes;
    const bool linked = !detail::is_one_sided(step.op);
    if (linked && !detail::links_ready(group, x, step, channel, bytes, progress)) {
      if (moved && progress.outcome == Outcome::kBlocked) progress.outcome = Outcome::kProgressed;
      break;
    }
    detail::move(group, x, step, channel, lane.segment * x.window + lane.offset, bytes);
    if (linked) detail::hand_over(group, x, step, channel, bytes);
    moved = true;
    --budget;
    lane.offset += bytes;
    if (lane.offset >= window) {
      ++lane.step;
      lane.offset = 0;
    }
  }
  if (group.leader()) x.lanes[channel] = lane;
  group.sync();
  return progress;
}

// Advances every channel by at most `budget` slots each. kBlocked only if none could move.
template <class Group>
HC_HOST_DEVICE Progress advance(Group& group, const Execution& x, uint32_t budget) {
  Progress result;
  bool progressed = false;
  bool blocked = false;
  for (uint32_t channel = 0; channel < x.program.channels; ++channel) {
    const Progress progress = advance_lane(group, x, channel, budget);
    switch (progress.outcome) {
      case Outcome::kCorrupt: return progress;
      case Outcome::kProgressed: progressed = true; break;
      case Outcome::kBlocked:
        if (!blocked) result = progress;
        blocked = true;
        break;
      case Outcome::kDone: break;
    }
  }
  if (progressed) {
    result.outcome = Outcome::kProgressed;
  } else if (!blocked) {
    result.outcome = Outcome::kDone;
  }
  return result;
}

}  // namespace hybridcomm
