// Who carries operations forward: what the collectives (communicator.h) and the messages
// (messenger.h) of a group have in common.
//
// Any thread may carry a service's operations forward, one at a time: the caller of a synchronous
// operation, whoever waits for an asynchronous one, or the engine's thread. Services know nothing
// of each other, so a collective that waits never keeps a message waiting, nor the other way round.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/wait.h"
#include "engine/identity.h"
#include "engine/operation.h"
#include "transports/shm/region.h"

namespace hybridcomm {

// Where a thread that waits for a service sleeps, and for how long at most.
struct SleepingPlace {
  std::vector<Bell*> bells;
  std::vector<std::shared_ptr<shm::Region>> mapped;  // keeps the bells' memory
  std::chrono::microseconds slice{0};
};

class Service : public std::enable_shared_from_this<Service> {
 public:
  virtual ~Service() = default;
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // Waits for an operation of this service, helping. Throws the CommError with which it failed, or
  // kTimeout if `at_most` passes first; the operation then goes on. Zero waits without limit (the
  // operation has its own).
  void wait(const std::shared_ptr<Operation>& operation, std::chrono::milliseconds at_most);

  // Ends every operation of the group on every rank with kAborted. Any thread, any time.
  void abort(const std::string& reason);
  // Leaves the group; operations still pending on this rank fail with kAborted. What this rank has
  // done stays valid for its peers.
  virtual void shutdown() = 0;
  // Ends every operation for a cause that was found elsewhere: by the group's other service.
  void fail_with(const ErrorInfo& cause);
  // What to call once, on any thread and without locks, when this service has failed.
  void set_failure_hook(std::function<void(const ErrorInfo&)> hook);

  void set_timeout(std::chrono::milliseconds timeout);
  std::chrono::milliseconds timeout() const;
  // Of the last operation submitted.
  uint64_t sequence() const;
  // The first failure, if any.
  std::optional<ErrorInfo> failure() const;
  const Identity& identity() const { return identity_; }

  // Called between the sleeps of a thread that waits; may throw to interrupt it (Ctrl-C), which
  // aborts the group.
  static void set_interrupt_check(void (*check)());

 protected:
  friend class Engine;

  using Finished = std::vector<std::shared_ptr<Operation>>;

  enum class Served {
    kEmpty,  // nothing to do
    kBusy,   // another thread is at it
    kBlocked,
    kProgressed,
  };

  Service(Identity identity, std::chrono::milliseconds timeout);

  // ---- what a service is
  // -------------------------------------------------------------------------

  // Latches a cause where peers see it. Any thread; without mutex_.
  virtual void tell_peers(ErrorKind kind, int peer) = 0;
  // The service failed while nothing was pending. Without mutex_.
  virtual void failed_idle(const ErrorInfo&) {}
  // Whether there is anything to carry forward. Called with mutex_ held.
  virtual bool has_work() const = 0;
  // Carries operations forward without waiting, on the one thread that is serving. Appends those
  // that ended to `finished`, after it has taken them out of whatever has_work() looks at and
  // called settle(). `examine`: look first at what steps cannot see: causes, deaths, deadlines.
  // kDone is not for a service to return.
  virtual Attempt turn(bool examine, Finished& finished) = 0;
  // What it sleeps on besides local_bell_, and the slice that deadlines allow. With mutex_ held.
  virtual void list_bells(SleepingPlace& place) const = 0;
  // What an operation waits for, and for which rank. Called while serving.
  virtual std::string waiting_for(const Operation& operation, int& peer) const = 0;
  // Ends all that is pending, with settle(). With mutex_ held, while nobody serves.
  virtual void abandon(Finished& finished) = 0;

  // ---- what a service is given
  // -------------------------------------------------------------------

  // Keeps the first failure. With mutex_ held.
  void note_failure(const ErrorInfo& info);
  // Why an operation must end because of what happened on this rank outside of it; nullopt if
  // nothing did.
  std::optional<ErrorInfo> outside_cause(const Operation& operation) const;
  // Stamps an operation with its number and deadline. Throws CommError if the group has failed or
  // was left. With mutex_ held; the caller then queues it.
  void admit(Operation& operation);
  // Throws CommError(kInvalid) in a forked child.
  void require_own_process() const;
  // Has the engine's thread look after what was queued.
  void hand_to_engine();
  void help_until_done(const std::shared_ptr<Operation>& operation, Clock::time_point until);

  // Carries operations forward, if no other thread is at it.
  Served serve(bool examine);
  // The same for the engine's thread, which stands back while a waiting thread helps.
  Served serve_in_background(bool examine);
  bool helped() const;
  SleepingPlace sleeping_place() const;

  // Notes how an operation ended; null means success. complete() then lets the caller know.
  static void settle(Operation& operation, std::unique_ptr<const ErrorInfo> info);
  // Tells the callers of operations that were settled. Without mutex_.
  void complete(Finished& finished);
  // Lets nothing new in, waits until no thread serves, and abandons what is pending; the caller
  // then completes it. Nothing is served after that. False if the service had been left already.
  bool leave(Finished& finished);

  const Identity identity_;
  const Clock::time_point created_ = Clock::now();
  const int process_id_;  // a forked child must not use the group

  mutable std::mutex mutex_;  // guards what follows, up to the blank line
  bool serving_ = false;
  bool left_ = false;
  int helpers_ = 0;
  uint64_t sequence_ = 0;
  std::optional<ErrorInfo> failure_;
  std::optional<std::string> abort_reason_;
  std::optional<ErrorInfo> outside_;  // given to fail_with()
  bool announced_ = false;
  std::chrono::milliseconds timeout_;

  mutable Bell local_bell_;  // rung when an operation completes or serving ends

 private:
  // What an operation waits for, seen by a thread that is not serving.
  std::string look_at(const Operation& operation, int& peer);
  // Calls the failure hook if there is a failure that it has not heard of.
  void announce_failure();
  // Fails with nothing pending.
  void end_idle(const ErrorInfo& info);
  void wake_all();

  std::function<void(const ErrorInfo&)> failure_hook_;  // set before the first operation
};

}  // namespace hybridcomm
