// One rank of one group: its queue of operations, and the protocol around each of them.
//
// Every operation goes through the same stages, each of them resumable:
//
//   join      once per group, at the first operation: shared memory and pidfds
//   (transports/shm/join.h) publish   write this rank's header: what it is about to do agree read
//   every other rank's header; a difference is a MismatchError, not a hang run       advance() over
//   the program until it is done
//
// Operations of one group run in the order of submission. Any thread may carry them forward, one at
// a time: the caller of a synchronous operation, whoever waits for an asynchronous one, or the
// engine's thread. A failed operation ends the group: its first cause is latched in the shared
// memory, every rank's current and later operations raise it, and abort() or destruction frees it.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/store.h"
#include "base/wait.h"
#include "engine/operation.h"
#include "transports/shm/join.h"

namespace hybridcomm {

struct CommunicatorOptions {
  std::string group;  // the name that errors show
  uint32_t rank = 0;
  shm::Shape shape;
  std::chrono::milliseconds timeout{1'800'000};
  // Rank i of this group is global_ranks[i] of the job, for errors; empty: the same number.
  std::vector<uint64_t> global_ranks;
  // Where to report the Phase; null: in the group's memory.
  uint32_t* phase = nullptr;
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // A group whose ranks meet through `store` at their first operation. Costs nothing until then.
  static std::shared_ptr<Communicator> create(CommunicatorOptions options,
                                              std::shared_ptr<KeyValueStore> store);
  // A group over memory that all its ranks map already: ranks as threads of one process.
  static std::shared_ptr<Communicator> attach(CommunicatorOptions options,
                                              shm::Membership membership);
  ~Communicator();

  // Queues an operation for the engine's thread. Throws CommError if the arguments are wrong or the
  // group has failed; nothing is queued then.
  std::shared_ptr<Operation> submit(OperationArguments arguments);
  // Queues it and carries it out on this thread. Throws the CommError with which it failed.
  void run(OperationArguments arguments);
  // Waits for an operation of this group, helping. Throws the CommError with which it failed, or
  // kTimeout if `at_most` passes first; the operation then goes on. Zero waits without limit (the
  // operation has its own).
  void wait(const std::shared_ptr<Operation>& operation, std::chrono::milliseconds at_most);

  // Ends every operation of this group on every rank with kAborted. Any thread, any time.
  void abort(const std::string& reason);
  // Leaves the group; operations still pending fail with kAborted. Other ranks keep what this one
  // has completed.
  void shutdown();

  void set_timeout(std::chrono::milliseconds timeout);
  std::chrono::milliseconds timeout() const;
  // Of the last operation submitted.
  uint64_t sequence() const;
  // The first failure, if any.
  std::optional<ErrorInfo> failure() const;
  const CommunicatorOptions& options() const { return options_; }

  // Called between the sleeps of a thread that waits in run() or wait(); may throw to interrupt it
  // (Ctrl-C), which aborts the group.
  static void set_interrupt_check(void (*check)());

 private:
  friend class Engine;

  Communicator(CommunicatorOptions options, std::shared_ptr<KeyValueStore> store);

  using Finished = std::vector<std::shared_ptr<Operation>>;

  enum class Served {
    kEmpty,    // nothing queued
    kBusy,     // another thread is at it
    kBlocked,  // on a peer
    kProgressed,
  };

  std::shared_ptr<Operation> enqueue(OperationArguments arguments);
  void help_until_done(const std::shared_ptr<Operation>& operation, Clock::time_point until);
  // Carries the first operation forward, if no other thread is at it. `examine` looks first at what
  // steps cannot see: causes, deaths, deadlines.
  Served serve(bool examine);
  // The same for the engine's thread, which stands back while a waiting thread helps.
  Served serve_in_background(bool examine);
  bool helped() const;
  // Where a thread that waits for this group sleeps, with what keeps the memory mapped, and for how
  // long at most.
  std::shared_ptr<shm::Region> sleeping_place(std::vector<Bell*>& bells,
                                              std::chrono::microseconds& slice);
  void complete(Finished& finished);
  // What an operation waits for, and for which rank, seen by a thread that is not serving.
  std::string look_at(const Operation& operation, int& peer);

  // These run on the one thread that is serving.
  Attempt step(Operation& operation);
  bool join();
  static shm::OperationHeader header_of(const Operation& operation);
  void publish_header(Operation& operation);
  bool agree(Operation& operation);
  void prepare(Operation& operation);
  void set_phase(Phase phase);
  void look_for_trouble(Operation& operation);
  void fail(const Operation& operation, ErrorInfo info, Finished& finished);

  // Sentences for errors.
  std::string name(uint32_t rank) const;
  ErrorInfo describe(const Operation& operation, ErrorKind kind, int peer,
                     const std::string& why) const;
  // A rank whose header differs from ours; `otherwise` if none does (yet).
  int first_to_differ(const Operation& operation, int otherwise) const;
  ErrorInfo describe_cause(const Operation& operation, uint64_t word) const;
  static int reporter_of(uint64_t word);
  std::string explain_mismatch(uint32_t a, uint32_t b) const;
  std::string waiting_for(const Operation& operation, int& peer) const;
  std::string describe_header(uint32_t rank) const;
  const char* how_lost(uint32_t rank) const;
  std::string doing(uint32_t rank, uint64_t sequence) const;

  // Rank 0 tells ranks that have not joined yet.
  void give_up_joining(const ErrorInfo& info);
  // Latches the cause, if it is the first, and wakes all ranks. Returns the first.
  uint64_t latch(shm::Region& region, ErrorKind kind, int peer);
  void ring_all(shm::Region& region);

  CommunicatorOptions options_;
  std::shared_ptr<KeyValueStore> store_;
  const Clock::time_point created_ = Clock::now();
  const int process_id_;  // a forked child must not use the group

  mutable std::mutex mutex_;  // guards what follows, up to the blank line
  std::deque<std::shared_ptr<Operation>> queue_;
  bool serving_ = false;
  bool joining_ = false;
  bool left_ = false;
  int helpers_ = 0;
  uint64_t sequence_ = 0;
  std::optional<ErrorInfo> failure_;
  std::optional<std::string> abort_reason_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<shm::Region> region_;  // as soon as there is one

  // Owned by whoever serves.
  std::unique_ptr<shm::Join> join_;
  std::vector<std::shared_ptr<Process>> processes_;
  bool joined_ = false;
  std::vector<LinkOut> out_;  // [channel][to]
  std::vector<LinkIn> in_;    // [channel][from]

  Bell local_bell_;  // rung when an operation completes or serving ends
  uint32_t no_phase_ = 0;
};

}  // namespace hybridcomm
