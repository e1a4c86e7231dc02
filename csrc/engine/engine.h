// The progress thread: one per process, started by the first asynchronous operation, asleep while
// there is nothing to do. It must be enough by itself, because DDP waits on futures that we cannot
// hook.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "base/wait.h"

namespace hybridcomm {

class Service;

class Engine {
 public:
  // Never destroyed: at exit the thread is simply no longer there.
  static Engine& instance();

  // Serves it until nothing is pending.
  void serve(std::shared_ptr<Service> service);
  // Makes it look again at the groups it serves: a thread that was helping one has stopped.
  void wake();

 private:
  static constexpr std::chrono::microseconds kIdleSlice{60'000'000};

  Engine() = default;
  void loop();

  std::mutex mutex_;
  std::vector<std::shared_ptr<Service>> arrivals_;
  uint64_t calls_ = 0;      // of serve() and wake(); read without the lock
  int thread_process_ = 0;  // the process that has a thread; a forked child starts its own
  Bell bell_;
};

}  // namespace hybridcomm
