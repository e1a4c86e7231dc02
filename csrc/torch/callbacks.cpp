// The threads of callbacks, and which may begin.
#include "torch/callbacks.h"

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/atomic.h"
#include "base/wait.h"

namespace hybridcomm {
namespace {

// A callback that takes longer is overtaken, in case it waits for something that comes after it.
constexpr std::chrono::milliseconds kPatience{1'000};
constexpr std::chrono::microseconds kQueuedSlice{50'000};
constexpr std::chrono::microseconds kIdleSlice{60'000'000};
constexpr int kMostIdle = 2;

struct Running {
  uint64_t number;
  const void* group;
};

struct Queued {
  const void* group;
  uint64_t parent;
  std::function<void()> task;
};

struct Callbacks {
  std::mutex mutex;  // guards what follows, up to the blank line
  std::deque<Queued> queue;
  std::vector<Running> running;
  uint64_t begun = 0;            // how many, which is the number of the last one
  Clock::time_point begun_at{};  // when the last one
  int idle = 0;                  // threads without a callback
  bool closed = false;           // none begins any more

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

thread_local uint64_t t_callback = 0;

// The first that may begin now; the end of the queue if none may.
std::deque<Queued>::iterator find_next(Callbacks& all) {
  if (all.closed) return all.queue.end();
  const bool overdue = Clock::now() - all.begun_at > kPatience;
  return std::find_if(all.queue.begin(), all.queue.end(), [&all, overdue](const Queued& queued) {
    bool alone = true;
    for (const Running& running : all.running) {
      if (running.number == queued.parent) return true;
      if (running.group == queued.group) alone = false;
    }
    return alone || overdue;
  });
}

void serve();

// Signals belong to the program's own threads: the new thread inherits a full mask.
void start_thread() {
  sigset_t everything, before;
  sigfillset(&everything);
  pthread_sigmask(SIG_BLOCK, &everything, &before);
  std::thread thread(serve);
  pthread_setname_np(thread.native_handle(), "hybridcomm-then");
  thread.detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// True, and counted as idle, if a thread must be started because none looks after the queue.
bool needs_thread(Callbacks& all) {
  if (all.queue.empty() || all.idle > 0) return false;
  ++all.idle;
  return true;
}

// Waits for a callback that may begin, and begins it.
std::function<void()> await_callback(Callbacks& all) {
  std::function<void()> task;
  bool start = false;
  Bell* const bell = &all.bell;
  bool queued = false;
  WaitPolicy policy = WaitPolicy::background();
  policy.slice = kIdleSlice;
  wait_until(
      policy,
      [&] {
        const std::lock_guard<std::mutex> lock(all.mutex);
        const bool was_queued = std::exchange(queued, !all.queue.empty());
        const auto next = find_next(all);
        if (next == all.queue.end()) {
          // If there is something to be impatient about now, the next sleep must be a short one.
          return queued && !was_queued ? Attempt::kProgressed : Attempt::kBlocked;
        }
        task = std::move(next->task);
        t_callback = ++all.begun;
        all.running.push_back({t_callback, next->group});
        all.queue.erase(next);
        all.begun_at = Clock::now();
        --all.idle;
        start = needs_thread(all);
        return Attempt::kDone;
      },
      [&] { return std::span<Bell* const>(&bell, 1); },
      [&] { return queued ? kQueuedSlice : kIdleSlice; });
  if (start) start_thread();
  return task;
}

// Returns false if this thread is not needed any more.
bool end_callback(Callbacks& all) {
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::erase_if(all.running, [](const Running& running) { return running.number == t_callback; });
  t_callback = 0;
  if (all.idle >= kMostIdle) return false;
  ++all.idle;
  return true;
}

void serve() {
  Callbacks& all = callbacks();
  do {
    await_callback(all)();
    fetch_add(all.unfinished, ~0u);
    ring(all.finished);
  } while (end_callback(all));
  ring(all.bell);
}

}  // namespace

uint64_t current_callback() { return t_callback; }

void run_callback(const void* group, uint64_t parent, std::function<void()> task) {
  Callbacks& all = callbacks();
  fetch_add(all.unfinished, 1u);
  bool start;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.queue.push_back({group, parent, std::move(task)});
    start = needs_thread(all);
  }
  if (start) start_thread();
  ring(all.bell);
}

Completing::Completing() { fetch_add(callbacks().unfinished, 1u); }

Completing::~Completing() {
  Callbacks& all = callbacks();
  fetch_add(all.unfinished, ~0u);
  ring(all.finished);
}

void finish_callbacks(std::chrono::seconds at_most) {
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
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.closed = true;
}

}  // namespace hybridcomm
