// The progress thread's loop.
#include "engine/engine.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <thread>

#include "engine/communicator.h"

namespace hybridcomm {

Engine& Engine::instance() {
  static Engine* engine = new Engine;
  return *engine;
}

void Engine::serve(std::shared_ptr<Communicator> communicator) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    arrivals_.push_back(std::move(communicator));
    if (thread_process_ != getpid()) {
      thread_process_ = getpid();
      // Signals belong to the program's own threads: the new thread inherits a full mask.
      sigset_t all, before;
      sigfillset(&all);
      pthread_sigmask(SIG_BLOCK, &all, &before);
      std::thread thread([this] { loop(); });
      pthread_setname_np(thread.native_handle(), "hybridcomm");
      thread.detach();
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    publish(arrived_, arrived_ + 1);
  }
  ring(bell_);
}

void Engine::wake() { ring_always(bell_); }

void Engine::loop() {
  std::vector<std::shared_ptr<Communicator>> active;
  std::vector<std::shared_ptr<shm::Region>> mapped;
  std::vector<Bell*> bells;
  std::vector<Bell*> place;
  uint64_t seen = 0;

  const auto take_arrivals = [&] {
    if (observe(arrived_) == seen) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    seen = arrived_;
    for (std::shared_ptr<Communicator>& arrival : arrivals_) {
      if (std::find(active.begin(), active.end(), arrival) == active.end()) {
        active.push_back(std::move(arrival));
      }
    }
    arrivals_.clear();
  };
  // Never done: the thread lives as long as the process.
  const auto turn = [&](bool examine) {
    take_arrivals();
    Attempt result = Attempt::kBlocked;
    for (size_t i = 0; i < active.size();) {
      const Communicator::Served served = active[i]->serve_in_background(examine);
      if (served == Communicator::Served::kEmpty) {
        active[i] = std::move(active.back());
        active.pop_back();
        continue;
      }
      if (served == Communicator::Served::kProgressed) result = Attempt::kProgressed;
      ++i;
    }
    return result;
  };
  const auto check = [&] {
    // Let go of what the last sleep kept mapped.
    mapped.clear();
    bells.assign(1, &bell_);
    turn(true);
    // With nothing to serve there is nothing to look at until somebody rings.
    std::chrono::microseconds slice =
        active.empty() ? kIdleSlice : std::chrono::microseconds(20'000);
    for (const std::shared_ptr<Communicator>& communicator : active) {
      // A thread that helps rings us when it stops.
      if (communicator->helped()) continue;
      std::chrono::microseconds own;
      mapped.push_back(communicator->sleeping_place(place, own));
      slice = std::min(slice, own);
      for (Bell* bell : place) {
        if (bells.size() < kMaxBells) {
          bells.push_back(bell);
        } else {
          // More groups in flight than bells: look at the others often enough.
          slice = std::min(slice, std::chrono::microseconds(500));
        }
      }
    }
    return slice;
  };
  WaitPolicy policy = WaitPolicy::background();
  policy.slice = kIdleSlice;
  wait_until(
      policy, [&] { return turn(false); }, [&] { return std::span<Bell* const>(bells); }, check);
}

}  // namespace hybridcomm
