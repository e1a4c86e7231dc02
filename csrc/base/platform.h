// What the compiler and the machine are: the only file that asks.
#pragma once

#include <cstddef>

#if defined(__CUDACC__)
#define HC_HOST_DEVICE __host__ __device__
#define HC_DEVICE __device__
#else
#define HC_HOST_DEVICE
#define HC_DEVICE
#endif

// True while the device half of a translation unit is being compiled: code there must not sleep,
// allocate or make system calls.
#if defined(__CUDA_ARCH__)
#define HC_ON_DEVICE 1
#else
#define HC_ON_DEVICE 0
#endif

namespace hybridcomm {

// The unit of sharing between cores. 64 bytes on every x86-64 and most aarch64; a wrong guess costs
// speed (false sharing), never correctness. Not std::hardware_destructive_interference_size: that
// may differ between two compilers that must agree on one shared layout.
inline constexpr std::size_t kCacheLine = 64;

}  // namespace hybridcomm
