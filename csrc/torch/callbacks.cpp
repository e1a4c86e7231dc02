// The threads of callbacks, and whose turn it is.
#include "torch/callbacks.h"

#include <pthread.h>

#include <csignal>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "base/atomic.h"
#include "base/wait.h"

namespace hybridcomm {
namespace {

constexpr std::chrono::milliseconds kPatience{20};
constexpr std::chrono::microseconds kQueuedSlice{5'000};
constexpr std::chrono::microseconds kIdleSlice{60'000'000};
constexpr int kMostIdle = 2;

struct Callbacks {
  std::mutex mutex;  // guards what follows, up to the blank line
  std::deque<std::function<void()>> queue;
  uint64_t turn = 0;     // number of the last callback that was begun
  bool running = false;  // it has neither returned nor given way
  Clock::time_point begun{};
  int idle = 0;  // threads without a callback

  Bell bell;  // rung when a callback may begin
  uint32_t unfinished = 0;
  Bell finished;
};

// Never destroyed: threads may outlive static objects. A forked child has none of the threads.
Callbacks* g_callbacks = nullptr;
Callbacks& callbacks() {
  static const bool made = [] {
    g_callbacks = new Callbacks;
    pthread_atfork(nullptr, nullptr, [] { g_callbacks = new Callbacks; });
    return true;
  }();
  static_cast<void>(made);
  return *g_callbacks;
}

thread_local uint64_t t_turn = 0;  // of the callback that this thread is running

// The next callback, as soon as it may begin. Sets t_turn.
std::function<void()> await_turn(Callbacks& all) {
  std::function<void()> task;
  Bell* const bell = &all.bell;
  bool queued = false;
  WaitPolicy policy = WaitPolicy::background();
  policy.slice = kIdleSlice;
  wait_until(
      policy,
      [&] {
        const std::lock_guard<std::mutex> lock(all.mutex);
        const bool was_queued = std::exchange(queued, !all.queue.empty());
        if (!queued || (all.running && Clock::now() - all.begun < kPatience)) {
          // If there is something to be impatient about now, the next sleep must be a short one.
          return queued && !was_queued ? Attempt::kProgressed : Attempt::kBlocked;
        }
        task = std::move(all.queue.front());
        all.queue.pop_front();
        all.running = true;
        all.begun = Clock::now();
        t_turn = ++all.turn;
        --all.idle;
        return Attempt::kDone;
      },
      [&] { return std::span<Bell* const>(&bell, 1); },
      [&] { return queued ? kQueuedSlice : kIdleSlice; });
  return task;
}

// Returns false if this thread is not needed any more.
bool end_turn(Callbacks& all) {
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.turn == t_turn) all.running = false;
  t_turn = 0;
  if (all.idle >= kMostIdle) return false;
  ++all.idle;
  return true;
}

void serve() {
  Callbacks& all = callbacks();
  do {
    await_turn(all)();
    fetch_add(all.unfinished, ~0u);
    ring(all.finished);
  } while (end_turn(all));
  ring(all.bell);
}

void start_thread() {
  // Signals belong to the program's own threads: the new thread inherits a full mask.
  sigset_t everything, before;
  sigfillset(&everything);
  pthread_sigmask(SIG_BLOCK, &everything, &before);
  std::thread thread(serve);
  pthread_setname_np(thread.native_handle(), "hybridcomm-then");
  thread.detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

void run_callback(std::function<void()> task) {
  Callbacks& all = callbacks();
  fetch_add(all.unfinished, 1u);
  bool start;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.queue.push_back(std::move(task));
    start = all.idle == 0;
    if (start) ++all.idle;
  }
  if (start) start_thread();
  ring(all.bell);
}

bool in_callback() { return t_turn != 0; }

void callback_may_wait() {
  if (!in_callback()) return;
  Callbacks& all = callbacks();
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (all.turn == t_turn) all.running = false;
  }
  ring(all.bell);
}

Completing::Completing() { fetch_add(callbacks().unfinished, 1u); }

Completing::~Completing() {
  Callbacks& all = callbacks();
  fetch_add(all.unfinished, ~0u);
  ring(all.finished);
}

void wait_for_callbacks(std::chrono::seconds at_most) {
  Callbacks& all = callbacks();
  const Clock::time_point until = Clock::now() + at_most;
  Bell* const bell = &all.finished;
  wait_until(
      WaitPolicy::caller(1),
      [&] {
        const bool over = observe(all.unfinished) == 0 || Clock::now() >= until;
        return over ? Attempt::kDone : Attempt::kBlocked;
      },
      [&] { return std::span<Bell* const>(&bell, 1); },
      [] { return std::chrono::microseconds(20'000); });
}

}  // namespace hybridcomm
