// Where the callbacks of futures run: on threads of their own.
//
// A callback may wait for another collective's future (torch's PowerSGD hook does), and nothing
// helps in such a wait. On the progress thread, or on a thread that waits for its own operation, it
// would wait for ever.
//
// Callbacks that start collectives must start them in the same order on every rank. Operations
// complete in that order, so their callbacks run one at a time in that order, but for those of the
// collectives that a running callback has started, which it may be waiting for. (Against
// collectives that other threads start at the same time there is no order, here or in any library.)
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace hybridcomm {

// The callback that this thread is running; 0 if none.
uint64_t current_callback();

// Runs `task`, which throws nothing, after those of the same group that were given before it.
// `group` is any address that names the group; `parent` the callback that started the operation, 0
// if none did.
void run_callback(const void* group, uint64_t parent, std::function<void()> task);

// Around other things that a completed operation sets off: its tensors are released, which may run
// Python.
class Completing {
 public:
  Completing();
  ~Completing();
  Completing(const Completing&) = delete;
  Completing& operator=(const Completing&) = delete;
};

// Waits until no callback is left and nothing is completing, at most so long; no callback begins
// after that.
void finish_callbacks(std::chrono::seconds at_most);

}  // namespace hybridcomm
