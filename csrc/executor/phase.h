// What a rank is doing, as one word in memory that others can read: a stuck or dead rank cannot be
// asked.
#pragma once

#include <cstdint>

namespace hybridcomm {

enum class Phase : uint32_t {
  kIdle = 0,       // between operations
  kConnect = 1,    // joining the group
  kPublish = 2,    // announcing an operation
  kAgree = 3,      // reading the other ranks' announcements
  kSend = 4,       // filling a slot
  kReceive = 5,    // emptying a slot
  kReduce = 6,     // combining slots with its own data
  kForward = 7,    // receiving and passing on
  kSignal = 8,     // tokens without data
  kBlocked = 9,    // waiting for a peer
  kComplete = 10,  // finishing an operation
};

inline constexpr uint32_t kPhases = 11;

constexpr const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kIdle: return "idle";
    case Phase::kConnect: return "connect";
    case Phase::kPublish: return "publish";
    case Phase::kAgree: return "agree";
    case Phase::kSend: return "send";
    case Phase::kReceive: return "receive";
    case Phase::kReduce: return "reduce";
    case Phase::kForward: return "forward";
    case Phase::kSignal: return "signal";
    case Phase::kBlocked: return "blocked";
    case Phase::kComplete: return "complete";
  }
  return "unknown";
}

}  // namespace hybridcomm
