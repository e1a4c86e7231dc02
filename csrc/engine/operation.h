// One call on one rank, whatever kind of call: where it stands, and what happens when it ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/wait.h"
#include "engine/flight_recorder.h"

namespace hybridcomm {

struct Buffer {
  void* data = nullptr;
  uint64_t bytes = 0;
};

class Operation;

// What every call may ask for.
struct Completion {
  std::chrono::milliseconds timeout{0};  // 0: the group's
  // Runs once if the operation succeeded, before done() turns true: what must happen before the
  // caller may look at its buffers (a copy back into a strided tensor). Must not wait.
  std::function<void()> epilogue;
  // Runs once, after done() has turned true, on whichever thread finishes the operation, holding no
  // lock.
  std::function<void(const Operation&)> on_complete;
  // For the flight recorder; must live until the operation is queued. Null: not recorded.
  const RecordedCall* recorded = nullptr;
};

class Operation {
 public:
  explicit Operation(Completion completion) : completion_(std::move(completion)) {}
  virtual ~Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // torch's name of the call: "all_reduce".
  virtual const char* name() const = 0;
  // What it moves, for errors: "4.0 KiB of float32"; empty if it moves nothing.
  virtual std::string contents() const = 0;
  virtual uint64_t bytes() const = 0;
  // Of a message: the other rank; -1 while it is not known, and of a collective.
  virtual int peer() const { return -1; }

  // Its number within its group and kind (collective or point-to-point), from 1.
  uint64_t sequence() const { return sequence_; }
  // True once it succeeded or failed. What it wrote is then visible to the caller.
  bool done() const { return observe(done_) != 0; }
  // Why it failed; null before it is done and if it succeeded.
  const ErrorInfo* error() const { return done() ? error_.get() : nullptr; }
  Clock::time_point enqueued_at() const { return enqueued_at_; }
  // When its first step could be taken (zero if none ever could), and when it was done; meaningful
  // once it is.
  Clock::time_point started_at() const { return started_at_; }
  Clock::time_point finished_at() const { return finished_at_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

 protected:
  friend class Service;

  // Once it has its number and its deadline.
  void enter();
  // When its first step can be taken.
  void begin();
  // How it ended; null means success. Only done_ then says so to others.
  void end(std::unique_ptr<const ErrorInfo> error);

  Completion completion_;
  uint64_t sequence_ = 0;
  Clock::time_point enqueued_at_{};
  Clock::time_point started_at_{};
  Clock::time_point finished_at_{};
  Clock::time_point deadline_{};
  std::chrono::milliseconds timeout_{0};

 private:
  std::unique_ptr<const ErrorInfo> error_;
  uint64_t record_ = 0;  // the flight recorder's ticket
  mutable uint32_t done_ = 0;
};

}  // namespace hybridcomm
