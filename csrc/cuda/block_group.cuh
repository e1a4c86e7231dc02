// The threads of a CUDA block as an executor's group: a block is a channel.
#pragma once

#include <cstdint>

#include "base/group.h"

namespace hybridcomm {

// One kernel per (operation, element type), as the reduction loop must be known to the compiler.
template <RedOp kOp, class T>
struct BlockGroup {
  bool* shared_flag;  // one bool in shared memory, for uniform()

  __device__ uint32_t thread_id() const { return threadIdx.x; }
  __device__ uint32_t size() const { return blockDim.x; }
  __device__ bool leader() const { return threadIdx.x == 0; }
  __device__ void sync() const { __syncthreads(); }

  __device__ bool uniform(bool value) const {
    if (leader()) *shared_flag = value;
    __syncthreads();
    const bool result = *shared_flag;
    // Nobody may write the next value before everybody has read this one.
    __syncthreads();
    return result;
  }

  __device__ void copy(void* to, const void* from, uint64_t bytes) const {
    auto* out = static_cast<std::byte*>(to);
    const auto* in = static_cast<const std::byte*>(from);
    constexpr uint64_t kWide = sizeof(uint4);
    uint64_t done = 0;
    if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % kWide == 0) {
      for (uint64_t i = thread_id(); i < bytes / kWide; i += size()) {
        reinterpret_cast<uint4*>(out)[i] = reinterpret_cast<const uint4*>(in)[i];
      }
      done = bytes / kWide * kWide;
    }
    for (uint64_t i = done + thread_id(); i < bytes; i += size()) out[i] = in[i];
  }

  __device__ void reduce(const Reducer&, void* to, const void* const* operands, uint32_t n_operands,
                         uint64_t bytes, uint32_t divisor) const {
    reduce_elements<kOp>(*this, static_cast<T*>(to), reinterpret_cast<const T* const*>(operands),
                         n_operands, bytes / sizeof(T), divisor);
  }
};

}  // namespace hybridcomm
