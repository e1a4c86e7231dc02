// The one place that waits. Everything that must wait for another thread, process or device calls
// wait_until() on the host or spin_until() on the device; no other file loops on a flag.
//
// Host: attempts are repeated while spinning for a moment, then while yielding, then the waiter
// goes to sleep on one or more bells, in slices. After each slice `check` looks at what an attempt
// cannot see (deadline, first cause, dead peers) and may end the wait by throwing.
//
// Ranks usually outnumber cores, so the spin is short or absent then: a rank that spins may be the
// one that keeps its peer from running.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>

#include "base/atomic.h"
#include "base/platform.h"

namespace hybridcomm {

// Where a waiter sleeps, in memory that its peers share (or private, for waits inside a process).
//
//   layout    two 32-bit words on a cache line of their own; zero is the initial state
//   ordering  a peer publishes its data, then reads `sleepers`; a sleeper increments `sleepers`,
//   then
//             attempts once more, then sleeps. publish()/observe() order the two (base/atomic.h).
//   lifetime  that of the mapping; no process owns it, so a killed sleeper leaves only a count that
//             is too high, which costs its peers a system call each time, never a wake
//   overflow  `rings` wraps; a sleeper would have to miss exactly 2^32 rings within one slice
struct alignas(kCacheLine) Bell {
  uint32_t rings = 0;
  uint32_t sleepers = 0;
};
static_assert(sizeof(Bell) == kCacheLine);

// Wakes whoever sleeps on the bell; costs one load when nobody does. Call it after publish().
#if !defined(__CUDACC__)
void ring_always(Bell& bell);
inline void ring(Bell& bell) {
  if (observe(bell.sleepers) != 0) ring_always(bell);
}
#else
// A device never wakes a sleeping host thread; hosts that wait for a device poll.
HC_HOST_DEVICE inline void ring(Bell&) {}
#endif

#if !defined(__CUDACC__)

using Clock = std::chrono::steady_clock;

// What one attempt achieved.
enum class Attempt { kBlocked, kProgressed, kDone };

struct WaitPolicy {
  int spins = 0;                            // attempts with a pause instruction between them
  int yields = 0;                           // then attempts with sched_yield between them
  std::chrono::microseconds slice{20'000};  // longest sleep between two checks

  // For a thread with nothing else to do while it waits, one of `ranks` on this host.
  static WaitPolicy caller(int ranks);
  // For the progress thread: computation of the same process may need the core.
  static WaitPolicy background();
};

// Cores this process may run on.
int usable_cores();

void cpu_relax();
// Lets another thread have the core. False if that is no use now: a thread that has nothing to do
// with us kept the core for long, here or within the last tenth of a second. With `may_move` also
// false now and then, if yields are what ends this thread's waits: its peer then shares the core,
// and a sleep lets the kernel wake it on an idle one.
bool yield_core(bool may_move);
// Tells yield_core() how a wait ended.
void note_wait_over(bool by_yield);

// Sleeps until a bell rings, `at_most` has passed, or a signal arrives. `seen[i]` is the value of
// bells[i]->rings at which the caller last found nothing to do. An empty span just sleeps.
void sleep_on(std::span<Bell* const> bells, std::span<const uint32_t> seen,
              std::chrono::microseconds at_most);

inline constexpr std::size_t kMaxBells = 64;

// Repeats `attempt` until it returns kDone. `attempt() -> Attempt`; `bells() -> span<Bell* const>`
// names where to sleep (at most kMaxBells; asked anew before each sleep); `check() ->
// std::chrono::microseconds` runs before each sleep, throws to end the wait, and returns how long
// the next sleep may last (the policy's slice bounds it too).
template <class AttemptFn, class BellsFn, class CheckFn>
void wait_until(const WaitPolicy& policy, AttemptFn&& attempt, BellsFn&& bells, CheckFn&& check) {
  int idle = 0;
  while (true) {
    const Attempt result = attempt();
    if (result != Attempt::kBlocked && idle > 0) note_wait_over(idle > policy.spins);
    if (result == Attempt::kDone) return;
    if (result == Attempt::kProgressed) {
      idle = 0;
      continue;
    }
    ++idle;
    if (idle <= policy.spins) {
      cpu_relax();
      continue;
    }
    if (idle <= policy.spins + policy.yields) {
      if (!yield_core(policy.spins > 0)) idle = policy.spins + policy.yields;
      continue;
    }
    std::chrono::microseconds slice = check();
    if (slice > policy.slice) slice = policy.slice;
    const std::span<Bell* const> where = bells();
    uint32_t seen[kMaxBells];
    for (std::size_t i = 0; i < where.size(); ++i) {
      fetch_add(where[i]->sleepers, 1u);
      seen[i] = observe(where[i]->rings);
    }
    // The announcement above and this attempt close the window in which a peer publishes, sees
    // nobody asleep and does not ring.
    const Attempt last = attempt();
    if (last == Attempt::kBlocked) sleep_on(where, {seen, where.size()}, slice);
    for (Bell* bell : where) fetch_add(bell->sleepers, ~0u);
    if (last == Attempt::kDone) return;
    // Work tends to arrive in bursts: after a wake, spin again before the next sleep.
    idle = 0;
  }
}

#else

// Device: a bounded spin that gives way to other warps and ends when `abort_word` is not zero.
// Returns false if it was aborted.
template <class Predicate>
HC_DEVICE bool spin_until(Predicate&& ready, uint64_t& abort_word) {
  while (!ready()) {
    if (load_relaxed(abort_word) != 0) return false;
#if HC_ON_DEVICE
    __nanosleep(64);
#endif
  }
  return true;
}

#endif

}  // namespace hybridcomm
