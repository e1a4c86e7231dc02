// System calls behind wait.h.
#include "base/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>

namespace hybridcomm {
namespace {

// Linux 5.16's futex_waitv and its argument, which older kernel headers lack.
constexpr long kSysFutexWaitv = 449;
constexpr uint32_t kFutex32 = 2;
struct FutexWaitv {
  uint64_t value;
  uint64_t address;
  uint32_t flags;
  uint32_t reserved;
};

constexpr int kYieldsInARow = 16;
thread_local int t_yields_in_a_row = 0;  // waits of this thread that ended after a yield

timespec to_timespec(std::chrono::nanoseconds time) {
  return {static_cast<time_t>(time.count() / 1'000'000'000),
          static_cast<long>(time.count() % 1'000'000'000)};
}

// Returns false if the kernel has no futex_waitv.
bool wait_for_any(std::span<Bell* const> bells, std::span<const uint32_t> seen,
                  std::chrono::microseconds at_most) {
  FutexWaitv waiters[kMaxBells];
  for (std::size_t i = 0; i < bells.size(); ++i) {
    waiters[i] = {seen[i], reinterpret_cast<uint64_t>(&bells[i]->rings), kFutex32, 0};
  }
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const timespec until = to_timespec(std::chrono::seconds(now.tv_sec) +
                                     std::chrono::nanoseconds(now.tv_nsec) + at_most);
  const long rc = syscall(kSysFutexWaitv, waiters, bells.size(), 0u, &until, CLOCK_MONOTONIC);
  return rc >= 0 || errno != ENOSYS;
}

}  // namespace

void ring_always(Bell& bell) {
  fetch_add(bell.rings, 1u);
  // Not FUTEX_PRIVATE: the sleeper may be in another process.
  syscall(SYS_futex, &bell.rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void sleep_on(std::span<Bell* const> bells, std::span<const uint32_t> seen,
              std::chrono::microseconds at_most) {
  if (at_most.count() <= 0) return;
  const timespec relative = to_timespec(at_most);
  if (bells.empty()) {
    clock_nanosleep(CLOCK_MONOTONIC, 0, &relative, nullptr);
  } else if (bells.size() == 1) {
    syscall(SYS_futex, &bells[0]->rings, FUTEX_WAIT, seen[0], &relative, nullptr, 0);
  } else if (!wait_for_any(bells, seen, at_most)) {
    // Without futex_waitv sleep on the first bell, in naps short enough to serve the others.
    const timespec nap = to_timespec(std::min(at_most, std::chrono::microseconds(200)));
    syscall(SYS_futex, &bells[0]->rings, FUTEX_WAIT, seen[0], &nap, nullptr, 0);
  }
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

void note_wait_over(bool by_yield) { t_yields_in_a_row = by_yield ? t_yields_in_a_row + 1 : 0; }

// Whoever yields queues behind every thread that wants the core, for milliseconds if they compute;
// whoever sleeps is woken ahead of them. So a yield that took long is the last for a while. Long is
// longer than a peer works on its part of an operation: two ranks on one core should both stay
// runnable, for only then does the kernel move one of them to another core.
bool yield_core(bool may_move) {
  constexpr std::chrono::microseconds kLong{1000};
  constexpr std::chrono::milliseconds kWhile{100};
  thread_local Clock::time_point crowded_until{};
  if (may_move && t_yields_in_a_row >= kYieldsInARow) {
    t_yields_in_a_row = 0;
    return false;
  }
  const Clock::time_point before = Clock::now();
  if (before < crowded_until) return false;
  sched_yield();
  const Clock::time_point after = Clock::now();
  if (after - before < kLong) return true;
  crowded_until = after + kWhile;
  return false;
}

// The spin covers a peer that is at work on another core: its answer takes a few microseconds. Any
// longer, and the peer is probably waiting for this very core, which only a yield gives it; a long
// spin would cost its whole length each time. A yield with nobody waiting costs less than a sleep
// and a wake, so it is worth many.
WaitPolicy WaitPolicy::caller(int ranks) {
  WaitPolicy policy;
  policy.spins = ranks <= usable_cores() ? 100 : 0;
  policy.yields = ranks <= usable_cores() ? 200 : 50;
  return policy;
}

WaitPolicy WaitPolicy::background() {
  WaitPolicy policy;
  policy.spins = 20;
  policy.yields = 5;
  return policy;
}

}  // namespace hybridcomm
