// Who executes a step: one host thread, or the threads of a CUDA block. The executor and the direct
// paths are written once over this interface and never name a thread index.
//
//   leader()           true on the one thread that touches links
//   uniform(value)     the leader's value, on every thread
//   sync()             every thread's writes are visible to every thread of the group
//   copy(to, from, n)  n bytes, shared out among the threads
//   reduce(...)        one reduction of a few operands, shared out among the threads
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/platform.h"
#include "base/reduce.h"

namespace hybridcomm {

// Which reduction an operation does.
struct Reducer {
  ReduceKernel kernel = nullptr;  // host; null if the operation moves bytes only
  uint32_t element_bytes = 1;
  DType dtype = DType::kUInt8;
  RedOp op = RedOp::kSum;
};

struct HostGroup {
  bool leader() const { return true; }
  bool uniform(bool value) const { return value; }
  void sync() const {}
  void copy(void* to, const void* from, uint64_t bytes) const { std::memcpy(to, from, bytes); }
  void reduce(const Reducer& reducer, void* to, const void* const* operands, uint32_t n_operands,
              uint64_t bytes, uint32_t divisor) const {
    reducer.kernel(to, operands, n_operands, bytes / reducer.element_bytes, divisor);
  }
};

}  // namespace hybridcomm
