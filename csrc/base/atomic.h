// Atomic access to plain words in memory that other threads, processes or devices share.
//
// The words themselves are plain integers, so that one struct describes the same bytes to g++, to
// nvcc and to another process; the ordering stands at each access. On the device the scope is the
// whole system, because the peer may be a CPU or another GPU.
//
// publish()/observe() are the pair that every link uses. On the device they are release/acquire. On
// the host they are sequentially consistent, because a host waiter may go to sleep: the publisher
// stores its word and then reads "is the peer asleep?", the sleeper stores "I am asleep" and then
// reads the word, and with less than sequential consistency both may read the old value and the
// wake is lost. No fences are used anywhere: ThreadSanitizer does not model them.
#pragma once

#include <cstdint>

#include "base/platform.h"

#if defined(__CUDACC__)
#include <cuda/atomic>
#else
#include <atomic>
#endif

namespace hybridcomm {

#if defined(__CUDACC__)
template <class T>
using AtomicRef = cuda::atomic_ref<T, cuda::thread_scope_system>;
namespace order = cuda::std;
#else
template <class T>
using AtomicRef = std::atomic_ref<T>;
namespace order = std;
#endif

template <class T>
HC_HOST_DEVICE inline T load_relaxed(T& word) {
  return AtomicRef<T>(word).load(order::memory_order_relaxed);
}

template <class T>
HC_HOST_DEVICE inline void store_relaxed(T& word, T value) {
  AtomicRef<T>(word).store(value, order::memory_order_relaxed);
}

template <class T>
HC_HOST_DEVICE inline T load_acquire(T& word) {
  return AtomicRef<T>(word).load(order::memory_order_acquire);
}

template <class T>
HC_HOST_DEVICE inline void store_release(T& word, T value) {
  AtomicRef<T>(word).store(value, order::memory_order_release);
}

// Makes everything written before it visible to whoever observes the value.
template <class T>
HC_HOST_DEVICE inline void publish(T& word, T value) {
#if HC_ON_DEVICE
  AtomicRef<T>(word).store(value, order::memory_order_release);
#else
  AtomicRef<T>(word).store(value, order::memory_order_seq_cst);
#endif
}

template <class T>
HC_HOST_DEVICE inline T observe(T& word) {
#if HC_ON_DEVICE
  return AtomicRef<T>(word).load(order::memory_order_acquire);
#else
  return AtomicRef<T>(word).load(order::memory_order_seq_cst);
#endif
}

template <class T>
HC_HOST_DEVICE inline T fetch_add(T& word, T value) {
  return AtomicRef<T>(word).fetch_add(value, order::memory_order_seq_cst);
}

// Returns true if `word` held `expected` and now holds `desired`; otherwise `expected` receives
// what it held.
template <class T>
HC_HOST_DEVICE inline bool compare_exchange(T& word, T& expected, T desired) {
  return AtomicRef<T>(word).compare_exchange_strong(expected, desired, order::memory_order_seq_cst);
}

}  // namespace hybridcomm
