// Helping, serving in turns, waiting and leaving.
#include "engine/service.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "engine/engine.h"

namespace hybridcomm {
namespace {

// Beyond this the clock would overflow; the operation's own time-out comes first.
constexpr std::chrono::hours kLongestWait{24 * 365};
// Longest sleep between two looks for causes, deaths and deadlines.
constexpr std::chrono::microseconds kSlice{20'000};
constexpr std::chrono::microseconds kLeastSlice{100};

std::atomic<void (*)()> g_interrupt_check{nullptr};

}  // namespace

void Service::set_interrupt_check(void (*check)()) { g_interrupt_check.store(check); }

Service::Service(Identity identity, std::chrono::milliseconds timeout)
    : identity_(std::move(identity)), process_id_(getpid()), timeout_(timeout) {}

// ---- submitting and waiting ---------------------------------------------------------------------

void Service::require_own_process() const {
  if (process_id_ == getpid()) return;
  throw CommError(ErrorKind::kInvalid,
                  "group '" + identity_.group + "' belongs to the process that made it (pid " +
                      std::to_string(process_id_) + "); make a new group after fork");
}

void Service::admit(Operation& operation) {
  if (left_) {
    throw CommError(ErrorKind::kAborted, std::string(operation.name()) + " on rank " +
                                             std::to_string(identity_.rank) + ": group '" +
                                             identity_.group + "' has been destroyed");
  }
  if (failure_) {
    throw CommError(
        identity_.describe(operation, failure_->kind, failure_->peer,
                           "not begun, because the group had failed: " + failure_->message));
  }
  operation.sequence_ = ++sequence_;
  operation.timeout_ =
      operation.completion_.timeout.count() > 0 ? operation.completion_.timeout : timeout_;
  operation.enqueued_at_ = Clock::now();
  operation.deadline_ = operation.enqueued_at_ + operation.timeout_;
  operation.enter();
}

void Service::hand_to_engine() { Engine::instance().serve(shared_from_this()); }

void Service::wait(const std::shared_ptr<Operation>& operation, std::chrono::milliseconds at_most) {
  const bool limited = at_most.count() > 0 && at_most < kLongestWait;
  help_until_done(operation, limited ? Clock::now() + at_most : Clock::time_point::max());
}

void Service::help_until_done(const std::shared_ptr<Operation>& operation,
                              Clock::time_point until) {
  if (!operation->done()) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++helpers_;
    }
    // Stops helping on every way out; what is still pending goes to another helper, which may sleep
    // because this thread was at it, or back to the engine's thread.
    struct Helping {
      Service* service;
      ~Helping() {
        bool others, left_over;
        {
          const std::lock_guard<std::mutex> lock(service->mutex_);
          others = --service->helpers_ > 0;
          left_over = service->has_work();
        }
        if (!left_over) return;
        if (others) {
          ring(service->local_bell_);
        } else {
          Engine::instance().wake();
        }
      }
    } helping{this};

    SleepingPlace place;
    const auto attempt = [&] {
      if (operation->done()) return Attempt::kDone;
      const Served served = serve(false);
      if (operation->done()) return Attempt::kDone;
      return served == Served::kProgressed ? Attempt::kProgressed : Attempt::kBlocked;
    };
    const auto check = [&] {
      serve(true);
      if (void (*interrupted)() = g_interrupt_check.load()) {
        try {
          interrupted();
        } catch (...) {
          abort("interrupted by a signal");
          throw;
        }
      }
      place = sleeping_place();
      if (until != Clock::time_point::max()) {
        const auto left =
            std::chrono::duration_cast<std::chrono::microseconds>(until - Clock::now());
        if (left.count() <= 0 && !operation->done()) {
          int peer = -1;
          const std::string what = look_at(*operation, peer);
          throw CommError(
              identity_.describe(*operation, ErrorKind::kTimeout, peer,
                                 "not done within the time given to wait(), and goes on; it waits "
                                 "for " +
                                     what));
        }
        place.slice = std::min(place.slice, left);
      }
      return place.slice;
    };
    wait_until(
        WaitPolicy::caller(static_cast<int>(identity_.world)), attempt,
        [&] { return std::span<Bell* const>(place.bells); }, check);
  }
  if (const ErrorInfo* error = operation->error()) throw CommError(*error);
}

std::string Service::look_at(const Operation& operation, int& peer) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (serving_) return "its steps, which another thread is carrying out";
    serving_ = true;
  }
  const std::string what = waiting_for(operation, peer);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    serving_ = false;
  }
  ring(local_bell_);
  return what;
}

SleepingPlace Service::sleeping_place() const {
  SleepingPlace place;
  place.bells.push_back(&local_bell_);
  place.slice = kSlice;
  const std::lock_guard<std::mutex> lock(mutex_);
  list_bells(place);
  place.slice = std::max(place.slice, kLeastSlice);
  return place;
}

// ---- serving ------------------------------------------------------------------------------------

Service::Served Service::serve_in_background(bool examine) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!has_work()) return Served::kEmpty;
    if (helpers_ > 0) return Served::kBusy;
  }
  const Served served = serve(examine);
  // A thread that came to help meanwhile found this one at it, and may have gone to sleep.
  if (helped()) ring(local_bell_);
  return served;
}

bool Service::helped() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return helpers_ > 0;
}

Service::Served Service::serve(bool examine) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!has_work()) return Served::kEmpty;
    if (serving_) return Served::kBusy;
    serving_ = true;
    examine = examine || abort_reason_ || outside_;
  }
  Finished finished;
  const Attempt result = turn(examine, finished);
  bool failed;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    serving_ = false;
    failed = failure_.has_value();
  }
  if (failed) announce_failure();
  if (!finished.empty()) {
    complete(finished);
    return Served::kProgressed;
  }
  return result == Attempt::kProgressed ? Served::kProgressed : Served::kBlocked;
}

void Service::settle(Operation& operation, std::unique_ptr<const ErrorInfo> info) {
  operation.end(std::move(info));
}

void Service::complete(Finished& finished) {
  for (const std::shared_ptr<Operation>& operation : finished) publish(operation->done_, 1u);
  ring(local_bell_);
  for (const std::shared_ptr<Operation>& operation : finished) {
    if (operation->completion_.on_complete) {
      operation->completion_.on_complete(*operation);
      operation->completion_.on_complete = nullptr;
    }
  }
}

// ---- failing and ending -------------------------------------------------------------------------

void Service::set_failure_hook(std::function<void(const ErrorInfo&)> hook) {
  failure_hook_ = std::move(hook);
}

void Service::note_failure(const ErrorInfo& info) {
  if (!failure_) failure_ = info;
}

void Service::announce_failure() {
  std::optional<ErrorInfo> news;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!announced_) news = failure_;
    announced_ = announced_ || news;
  }
  if (news && failure_hook_) failure_hook_(*news);
}

std::optional<ErrorInfo> Service::outside_cause(const Operation& operation) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (abort_reason_) {
    return identity_.describe(operation, ErrorKind::kAborted, static_cast<int>(identity_.rank),
                              "aborted on this rank: " + *abort_reason_);
  }
  if (outside_) {
    return identity_.describe(operation, outside_->kind, outside_->peer,
                              "not finished, because the group failed: " + outside_->message);
  }
  return std::nullopt;
}

void Service::abort(const std::string& reason) {
  // The memory of a forked child's group is its parent's.
  if (process_id_ != getpid()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (left_ || failure_) return;
    if (!abort_reason_) abort_reason_ = reason;
  }
  tell_peers(ErrorKind::kAborted, static_cast<int>(identity_.rank));
  // Whoever waits or serves will see the reason; if nobody does, this thread carries it out.
  wake_all();
  if (serve(true) != Served::kEmpty) return;
  ErrorInfo info;
  info.kind = ErrorKind::kAborted;
  info.group = identity_.group;
  info.rank = info.peer = static_cast<int>(identity_.rank);
  info.message = "group '" + identity_.group + "' was aborted on rank " +
                 std::to_string(identity_.rank) + ": " + reason;
  end_idle(info);
}

void Service::fail_with(const ErrorInfo& cause) {
  if (process_id_ != getpid()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (left_ || failure_ || outside_) return;
    outside_ = cause;
    // Whoever told us knows already.
    announced_ = true;
  }
  tell_peers(cause.kind, cause.peer);
  wake_all();
  if (serve(true) == Served::kEmpty) end_idle(cause);
}

void Service::end_idle(const ErrorInfo& info) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_) return;
    failure_ = info;
  }
  failed_idle(info);
  announce_failure();
}

void Service::wake_all() {
  const SleepingPlace place = sleeping_place();
  for (Bell* bell : place.bells) ring_always(*bell);
}

bool Service::leave(Finished& finished) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (left_) return false;
    left_ = true;
  }
  const auto attempt = [&] {
    const std::lock_guard<std::mutex> lock(mutex_);
    // A forked child has a copy of the group, but no thread that serves it.
    if (serving_ && process_id_ == getpid()) return Attempt::kBlocked;
    abandon(finished);
    return Attempt::kDone;
  };
  Bell* const bell = &local_bell_;
  wait_until(
      WaitPolicy::caller(1), attempt, [&] { return std::span<Bell* const>(&bell, 1); },
      [] { return std::chrono::microseconds(1000); });
  return true;
}

void Service::set_timeout(std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0) {
    throw CommError(ErrorKind::kInvalid,
                    "timeout must be positive, got " + std::to_string(timeout.count()) + " ms");
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  timeout_ = timeout;
}

std::chrono::milliseconds Service::timeout() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return timeout_;
}

uint64_t Service::sequence() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return sequence_;
}

std::optional<ErrorInfo> Service::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

}  // namespace hybridcomm
