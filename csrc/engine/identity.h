// Who a rank is within its group, and the sentences that errors are made of.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace hybridcomm {

class Operation;

struct Identity {
  std::string group;  // the name that errors show
  uint32_t rank = 0;
  uint32_t world = 0;
  // Rank i of this group is global_ranks[i] of the job; empty: the same number.
  std::vector<uint64_t> global_ranks;

  uint64_t global_rank(uint32_t of) const {
    return of < global_ranks.size() ? global_ranks[of] : of;
  }
  // "rank 1 (global rank 5)".
  std::string name(uint32_t of) const;
  // "all_reduce #3 (4.0 KiB of float32, group 'x', world size 4) on rank 1: WHY". `peer` is the
  // rank to blame, -1 if none.
  ErrorInfo describe(const Operation& operation, ErrorKind kind, int peer,
                     const std::string& why) const;
};

// What a peer wrote, made fit for an error: up to the first zero, unprintable bytes as '?'.
std::string printable(const char* text, size_t size);

// "4.0 KiB".
std::string size_text(uint64_t bytes);

}  // namespace hybridcomm
