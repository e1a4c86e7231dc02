// Where the callbacks of futures run: on threads of their own.
//
// A callback may wait for another collective's future (torch's PowerSGD hook does), and nothing
// helps in such a wait. On the progress thread, or on a thread that waits for its own operation, it
// would wait for ever.
//
// Callbacks that start collectives must start them in the same order on every rank. Operations
// complete in that order, so a callback begins when the one before it has returned, or has started
// a collective, which it may now be waiting for. One that takes long without either is overtaken,
// in case it waits for something that comes after it.
#pragma once

#include <chrono>
#include <functional>

namespace hybridcomm {

// Runs `task`, which throws nothing, after those given before it.
void run_callback(std::function<void()> task);

// Whether this thread is running a callback.
bool in_callback();

// Called when a collective has been started: if by a callback, the next one may begin.
void callback_may_wait();

// Around other things that a completed operation sets off: its tensors are released, which may run
// Python.
class Completing {
 public:
  Completing();
  ~Completing();
  Completing(const Completing&) = delete;
  Completing& operator=(const Completing&) = delete;
};

// Waits until no callback is left and nothing is completing, at most so long.
void wait_for_callbacks(std::chrono::seconds at_most);

}  // namespace hybridcomm
