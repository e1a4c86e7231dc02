// Waiting: no wake is lost, on one bell, on several, and where the kernel cannot sleep on several.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/wait.h"
#include "check.h"

namespace {

using namespace hybridcomm;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// Straight to sleep: a wake that is lost costs a whole slice.
WaitPolicy asleep(microseconds slice) {
  WaitPolicy policy;
  policy.spins = 0;
  policy.yields = 0;
  policy.slice = slice;
  return policy;
}

// Two threads that hand a number to and fro, each sleeping on `bells` bells of which the other
// rings one, in turn.
struct PingPong {
  struct Side {
    std::vector<Bell> bells;
    uint32_t ball = 0;  // as it comes to this side
  };
  std::array<Side, 2> sides;

  // Returns the longest time that one throw took. With `forget`, one throw rings no bell.
  microseconds play(uint32_t throws, size_t bells, microseconds slice, uint32_t forget = 0) {
    std::array<microseconds, 2> longest{};
    for (Side& side : sides) side.bells.resize(bells);
    const auto player = [&](size_t self) {
      Side& mine = sides[self];
      Side& other = sides[1 - self];
      std::vector<Bell*> places;
      for (Bell& bell : mine.bells) places.push_back(&bell);
      for (uint32_t i = 1; i <= throws; ++i) {
        const auto hit = [&] {
          const bool forgotten = self == 0 && i == forget;
          // Only one who sleeps misses the ring.
          if (forgotten) std::this_thread::sleep_for(milliseconds(20));
          publish(other.ball, i);
          if (!forgotten) ring(other.bells[i % other.bells.size()]);
        };
        const auto before = Clock::now();
        if (self == 0) hit();
        wait_until(
            asleep(slice),
            [&] { return observe(mine.ball) >= i ? Attempt::kDone : Attempt::kBlocked; },
            [&] { return std::span<Bell* const>(places); }, [&] { return slice; });
        if (self == 1) hit();
        longest[self] = std::max(longest[self],
                                 std::chrono::duration_cast<microseconds>(Clock::now() - before));
      }
    };
    std::thread opponent(player, 1);
    player(0);
    opponent.join();
    return std::max(longest[0], longest[1]);
  }
};

void no_wake_is_lost(const char* how, uint32_t throws, size_t bells) {
  const auto longest = PingPong().play(throws, bells, std::chrono::seconds(10));
  CHECK(longest < std::chrono::seconds(5), "%s: a throw took %lld us", how,
        static_cast<long long>(longest.count()));
}

// What no_wake_is_lost looks for, planted: the slice alone ends the wait.
void finds_a_forgotten_ring() {
  const auto slice = milliseconds(200);
  const auto longest = PingPong().play(200, 1, slice, 100);
  CHECK(longest >= slice / 2, "a forgotten ring cost %lld us",
        static_cast<long long>(longest.count()));
}

// Makes the kernel of this process say that it has no futex_waitv, as one older than 5.16 does.
bool forbid_futex_waitv() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 449, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog filter{static_cast<unsigned short>(std::size(program)), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

void an_older_kernel_will_do() {
  const pid_t child = fork();
  if (child == 0) {
    if (!forbid_futex_waitv()) {
      std::fprintf(stderr, "seccomp is not allowed here: the way without futex_waitv not tested\n");
      _exit(0);
    }
    no_wake_is_lost("without futex_waitv", 2000, 3);
    _exit(check_status());
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

template <class Call>
microseconds time_of(Call call) {
  const auto before = Clock::now();
  call();
  return std::chrono::duration_cast<microseconds>(Clock::now() - before);
}

void sleeps_end() {
  Bell one, two;
  Bell* const both[] = {&one, &two};
  const uint32_t now[] = {0, 0};
  const uint32_t past[] = {0, 7};
  for (const size_t n : {0, 1, 2}) {
    const auto slept = time_of([&] { sleep_on({both, n}, {now, n}, milliseconds(30)); });
    CHECK(slept >= milliseconds(29) && slept < milliseconds(1000), "%zu bells: %lld us", n,
          static_cast<long long>(slept.count()));
    // No time at all is no sleep; a negative one is that of a deadline that has passed.
    for (const int none : {0, -5}) {
      CHECK(time_of([&] { sleep_on({both, n}, {now, n}, milliseconds(none)); }) < milliseconds(25));
    }
  }
  // A bell that has rung since it was looked at ends the sleep at once, whichever it is.
  CHECK(time_of([&] { sleep_on(both, past, std::chrono::seconds(10)); }) < milliseconds(5000));
}

// check() ends a wait by throwing, the slice it returns is kept, and nobody stays announced.
void a_wait_ends_by_throwing() {
  Bell bell;
  Bell* const place = &bell;
  int checks = 0;
  struct Enough {};
  const auto spent = time_of([&] {
    try {
      wait_until(
          asleep(std::chrono::seconds(10)), [] { return Attempt::kBlocked; },
          [&] { return std::span<Bell* const>(&place, 1); },
          [&]() -> microseconds {
            if (++checks == 4) throw Enough{};
            return milliseconds(10);
          });
    } catch (const Enough&) {
      return;
    }
    CHECK(false, "the wait ended by itself");
  });
  CHECK(checks == 4 && spent >= milliseconds(29) && spent < milliseconds(5000));
  CHECK(bell.sleepers == 0, "%u sleepers left", bell.sleepers);
}

// A killed sleeper leaves the count too high: rings still wake, and nothing else happens.
void a_dead_sleeper_costs_no_wake() {
  PingPong game;
  for (auto& side : game.sides) {
    side.bells.resize(1);
    side.bells[0].sleepers = 3;
  }
  CHECK(game.play(2000, 1, std::chrono::seconds(10)) < std::chrono::seconds(5));
}

}  // namespace

int main() {
  an_older_kernel_will_do();  // first: it forks
  finds_a_forgotten_ring();
  no_wake_is_lost("one bell", 100'000, 1);
  no_wake_is_lost("three bells", 20'000, 3);
  no_wake_is_lost("all bells", 2'000, kMaxBells);
  sleeps_end();
  a_wait_ends_by_throwing();
  a_dead_sleeper_costs_no_wake();
  return check_status();
}
