// Who wants to know how the work of a group went: timing, the completion hook, and those who wait
// until nothing is under way.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "base/atomic.h"
#include "base/wait.h"
#include "engine/operation.h"

namespace hybridcomm {

// One for each group; the group's works share it.
class Observers {
 public:
  using Hook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

  // Whether work may be asked how long it took.
  void enable_timing() { publish(timed_, 1u); }
  bool timed() const { return observe(timed_) != 0; }

  // Of which there can be one.
  void set_hook(Hook hook);
  bool has_hook() const { return observe(hooked_) != 0; }
  // Calls the hook for an operation that succeeded. What the hook throws becomes a warning.
  void call_hook(c10d::OpType type, uint64_t sequence, Clock::time_point started,
                 Clock::time_point finished) const;

  // Waits until no work is under way and every hook that was due has run.
  void wait_for_pending();

 private:
  friend class Pending;

  mutable uint32_t timed_ = 0;
  mutable uint32_t hooked_ = 0;
  Hook hook_;  // set before hooked_, once

  uint32_t pending_ = 0;
  Bell bell_;  // rung when pending_ turns 0
};

// One work under way, or one hook that is due.
class Pending {
 public:
  explicit Pending(std::shared_ptr<Observers> observers);
  ~Pending() { release(); }
  Pending(const Pending& other) : Pending(other.observers_) {}
  Pending& operator=(const Pending&) = delete;

  const std::shared_ptr<Observers>& observers() const { return observers_; }
  void release();

 private:
  std::shared_ptr<Observers> observers_;  // null once released
};

}  // namespace hybridcomm
