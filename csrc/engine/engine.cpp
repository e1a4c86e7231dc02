// The progress thread's loop.
#include "engine/engine.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <iterator>
#include <thread>

#include "engine/service.h"

namespace hybridcomm {
namespace {

// Turns between two looks at deadlines and deaths while nothing blocks: a few system calls for each
// rank, against at least as many slots moved.
constexpr uint32_t kExamineEvery = 64;

}  // namespace

Engine& Engine::instance() {
  static Engine* engine = new Engine;
  return *engine;
}

void Engine::serve(std::shared_ptr<Service> service) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    arrivals_.push_back(std::move(service));
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
    publish(calls_, calls_ + 1);
  }
  ring(bell_);
}

void Engine::wake() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    publish(calls_, calls_ + 1);
  }
  ring(bell_);
}

void Engine::loop() {
  std::vector<std::shared_ptr<Service>> active;
  // What keeps the listed bells in being until the next sleep is over: the last turn before it may
  // find a group's queue empty and let go of the group.
  std::vector<std::shared_ptr<Service>> listed;
  std::vector<std::shared_ptr<shm::Region>> mapped;
  std::vector<Bell*> bells;
  uint64_t seen = 0;

  // True if there is something new to serve, and so also new bells to sleep on.
  const auto take_arrivals = [&] {
    if (observe(calls_) == seen) return false;
    const std::lock_guard<std::mutex> lock(mutex_);
    seen = calls_;
    for (std::shared_ptr<Service>& arrival : arrivals_) {
      if (std::find(active.begin(), active.end(), arrival) == active.end()) {
        active.push_back(std::move(arrival));
      }
    }
    arrivals_.clear();
    return true;
  };
  // Never done: the thread lives as long as the process. An arrival counts as progress even if it
  // is blocked at once: else the last turn before a sleep could take it up, and the thread would
  // sleep on bells that were listed before.
  const auto turn = [&](bool examine) {
    Attempt result = take_arrivals() ? Attempt::kProgressed : Attempt::kBlocked;
    for (size_t i = 0; i < active.size();) {
      const Service::Served served = active[i]->serve_in_background(examine);
      if (served == Service::Served::kEmpty) {
        active[i] = std::move(active.back());
        active.pop_back();
        continue;
      }
      if (served == Service::Served::kProgressed) result = Attempt::kProgressed;
      ++i;
    }
    return result;
  };
  const auto check = [&] {
    bells.assign(1, &bell_);
    listed.clear();
    mapped.clear();
    turn(true);
    // With nothing to serve there is nothing to look at until somebody rings.
    std::chrono::microseconds slice =
        active.empty() ? kIdleSlice : std::chrono::microseconds(20'000);
    for (const std::shared_ptr<Service>& service : active) {
      // A thread that helps rings us when it stops.
      if (service->helped()) continue;
      listed.push_back(service);
      SleepingPlace place = service->sleeping_place();
      std::move(place.mapped.begin(), place.mapped.end(), std::back_inserter(mapped));
      slice = std::min(slice, place.slice);
      for (Bell* bell : place.bells) {
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
  // While some group always progresses there is no sleep, hence no check, and the deadlines of the
  // others must be kept all the same.
  uint32_t turns = 0;
  WaitPolicy policy = WaitPolicy::background();
  policy.slice = kIdleSlice;
  wait_until(
      policy, [&] { return turn(++turns % kExamineEvery == 0); },
      [&] { return std::span<Bell* const>(bells); }, check);
}

}  // namespace hybridcomm
