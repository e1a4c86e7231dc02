// The collectives of one rank of one group: their queue, and the protocol around each of them.
//
// Every collective goes through the same stages, each of them resumable:
//
//   join      once per group, at the first operation: shared memory and pidfds
//             (transports/shm/join.h)
//   publish   write this rank's header: what it is about to do
//   agree     read every other rank's header; a difference is a MismatchError, not a hang
//   run       advance() over the program until it is done
//
// Collectives of one group run in the order of submission. One that fails ends the group: its first
// cause is latched in the shared memory, every rank's current and later operations raise it, and
// abort() or destruction frees it.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/store.h"
#include "engine/collective.h"
#include "engine/service.h"
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

class Communicator final : public Service {
 public:
  // A group whose ranks meet through `store` at their first operation. Costs nothing until then.
  static std::shared_ptr<Communicator> create(CommunicatorOptions options,
                                              std::shared_ptr<KeyValueStore> store);
  // A group over memory that all its ranks map already: ranks as threads of one process.
  static std::shared_ptr<Communicator> attach(CommunicatorOptions options,
                                              shm::Membership membership);
  ~Communicator() override;

  // Queues an operation for the engine's thread. Throws CommError if the arguments are wrong or the
  // group has failed; nothing is queued then.
  std::shared_ptr<Operation> submit(OperationArguments arguments);
  // Queues it and carries it out on this thread. Throws the CommError with which it failed.
  void run(OperationArguments arguments);

  void shutdown() override;

  const CommunicatorOptions& options() const { return options_; }
  // Of the shared memory that the group has mapped by now; resident is what has been used of it.
  uint64_t mapped_bytes() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return region_ != nullptr ? shm::region_bytes(region_->shape()) : 0;
  }

 private:
  using Current = std::shared_ptr<CollectiveOperation>;

  Communicator(CommunicatorOptions options, std::shared_ptr<KeyValueStore> store);

  Current enqueue(OperationArguments arguments);

  // Service.
  void tell_peers(ErrorKind kind, int peer) override;
  void failed_idle(const ErrorInfo& info) override;
  bool has_work() const override { return !queue_.empty(); }
  Attempt turn(bool examine, Finished& finished) override;
  void list_bells(SleepingPlace& place) const override;
  std::string waiting_for(const Operation& operation, int& peer) const override;
  void abandon(Finished& finished) override;

  // These run on the one thread that is serving.
  Attempt step(CollectiveOperation& operation);
  bool join();
  static shm::OperationHeader header_of(const CollectiveOperation& operation);
  void publish_header(CollectiveOperation& operation);
  bool agree(CollectiveOperation& operation);
  void compare_promises(const CollectiveOperation& operation);
  // Whether `from` sends `to` another number of bytes in an all-to-all than `to` expects.
  bool broken_promise(uint32_t from, uint32_t to, uint64_t sequence) const;
  void prepare(CollectiveOperation& operation);
  // Goes on with what follows in the operation's place, if anything does.
  bool continue_with_next(CollectiveOperation& operation);
  void set_phase(Phase phase);
  void look_for_trouble(CollectiveOperation& operation);
  void fail(const CollectiveOperation& operation, ErrorInfo info, Finished& finished);

  // Sentences for errors.
  std::string name(uint32_t rank) const { return identity_.name(rank); }
  // A rank whose header differs from ours; `otherwise` if none does (yet).
  int first_to_differ(const CollectiveOperation& operation, int otherwise) const;
  ErrorInfo describe_cause(const CollectiveOperation& operation, uint64_t word) const;
  std::string explain_mismatch(uint32_t a, uint32_t b) const;
  std::string waiting_for_peers(const CollectiveOperation& operation, int& peer) const;
  shm::OperationHeader& latest_header(uint32_t rank) const;
  std::string describe_header(uint32_t rank) const;
  const char* how_lost(uint32_t rank) const;
  std::string doing(uint32_t rank, uint64_t sequence) const;

  // Rank 0 tells ranks that have not joined yet.
  void give_up_joining(const ErrorInfo& info);
  void ring_all(shm::Region& region);

  CommunicatorOptions options_;
  std::shared_ptr<KeyValueStore> store_;

  // Guarded by mutex_.
  std::deque<Current> queue_;
  bool joining_ = false;
  std::shared_ptr<shm::Region> region_;  // as soon as there is one

  // Owned by whoever serves.
  std::unique_ptr<shm::Join> join_;
  std::vector<std::shared_ptr<Process>> processes_;
  bool joined_ = false;
  std::vector<LinkOut> out_;  // [channel][to]
  std::vector<LinkIn> in_;    // [channel][from]

  uint32_t no_phase_ = 0;
};

}  // namespace hybridcomm
