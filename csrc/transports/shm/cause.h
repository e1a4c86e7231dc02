// Reading and writing the first cause of a failure (layout.h).
#pragma once

#include "base/atomic.h"
#include "base/error.h"
#include "transports/shm/layout.h"

namespace hybridcomm::shm {

// What the word says. A peer wrote it: ranks may be anything up to 2^24 - 2.
struct CauseRead {
  ErrorKind kind = ErrorKind::kNone;
  int blamed = -1;
  int reporter = -1;
};

inline CauseRead read_cause(uint64_t word) {
  return {static_cast<ErrorKind>(word & 0xff), static_cast<int>((word >> 8) & 0xffffff) - 1,
          static_cast<int>((word >> 32) & 0xffffff) - 1};
}

// Writes the cause if it is the first. Returns the first: `word` itself if it was.
inline uint64_t latch_cause(Cause& cause, ErrorKind kind, int blamed, uint32_t reporter) {
  const uint64_t word = static_cast<uint64_t>(kind) |
                        (static_cast<uint64_t>(blamed + 1) & 0xffffff) << 8 |
                        (uint64_t{reporter} + 1) << 32;
  uint64_t first = 0;
  return compare_exchange(cause.word, first, word) ? word : first;
}

}  // namespace hybridcomm::shm
