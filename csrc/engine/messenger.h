// Point-to-point messages of one rank of one group. They know nothing of the group's collectives:
// neither waits for the other, and their sequence numbers are their own.
//
// Two ranks that exchange a message get a small shared region of their own (messenger_pair.h),
// which only these two join, when the first of them calls: a message between ranks 1 and 2 needs
// nothing of rank 0, and a group that sends no messages costs nothing.
//
// Matching is MPI's: a receive takes the first message that its source sent with its tag, and of
// two receives that a message fits it goes to the one posted first. While a receive from a rank (or
// from any) is pending, what that rank sends and no receive asks for is taken into memory, so that
// a later message can overtake it; otherwise it stays in its slots, and the sender waits when they
// are full. Like MPI's, that memory has no bound but what the peers send.
//
// Failures. A time-out of a receive that no message has met, or of a send of which nothing is in a
// slot, withdraws that message and harms nothing else. Everything else ends the group's messages on
// every rank with one first cause: it is latched in the regions of all pairs, and left in the store
// for ranks that wait for another to join. What a rank had sent before it died is delivered first.
// A receive from any rank fails if one of them dies, or ends without having exchanged a message
// with this one, or if all have left.
#pragma once

#include <chrono>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/store.h"
#include "engine/message.h"
#include "engine/service.h"
#include "executor/phase.h"
#include "transports/shm/join.h"

namespace hybridcomm {

class Pair;
struct Incoming;
struct Trouble;

struct MessengerOptions {
  std::string group;  // the name that errors show
  uint32_t rank = 0;
  uint32_t world = 0;
  // Of the link from one rank to another; both must have the same.
  uint32_t slots = 4;
  uint64_t slot_bytes = 65'536;
  std::chrono::milliseconds timeout{1'800'000};
  // Rank i of this group is global_ranks[i] of the job, for errors; empty: the same number.
  std::vector<uint64_t> global_ranks;
  // Where to report the Phase; may be null.
  uint32_t* phase = nullptr;
};

class Messenger final : public Service {
 public:
  // Pairs meet through `store`, in which every member has left its card (Communicator::create).
  // All members must have made theirs before one of them uses the group: creating it wipes out
  // what this rank left in that place of the store as a member of an earlier group.
  static std::shared_ptr<Messenger> create(MessengerOptions options,
                                           std::shared_ptr<KeyValueStore> store);
  // Over memory that is mapped already, pairs[peer] with world size 2, in which the lower rank is
  // 0: ranks as threads of one process.
  static std::shared_ptr<Messenger> attach(MessengerOptions options,
                                           std::vector<shm::Membership> pairs);
  ~Messenger() override;

  // Queues a message for the engine's thread. Throws CommError if the arguments are wrong or the
  // group has failed; nothing is queued then.
  std::shared_ptr<Message> submit(MessageArguments arguments);
  // Queues it and carries it out on this thread. Throws the CommError with which it failed.
  std::shared_ptr<Message> run(MessageArguments arguments);

  // The pairs that have shared memory by now, and how much of it is mapped.
  struct Mapped {
    uint64_t pairs = 0;
    uint64_t bytes = 0;
  };
  Mapped mapped() const;

  // Leaves the group; messages still pending fail with kAborted. What this rank has sent can still
  // be received.
  void shutdown();

 private:
  using Current = std::shared_ptr<Message>;

  Messenger(MessengerOptions options, std::shared_ptr<KeyValueStore> store);

  Current enqueue(MessageArguments arguments);
  // Throws CommError(kInvalid) if the arguments make no sense.
  void check(const Message& message) const;

  // Service.
  void tell_peers(ErrorKind kind, int peer) override;
  void failed_idle(const ErrorInfo& info) override;
  bool has_work() const override { return !pending_.empty(); }
  Attempt turn(bool examine, Finished& finished) override;
  void list_bells(SleepingPlace& place) const override;
  std::string waiting_for(const Operation& operation, int& peer) const override;
  void abandon(Finished& finished) override;

  // These run on the one thread that is serving.
  bool take_posted(Finished& finished);
  void post_receive(const Current& receive, Finished& finished);
  // Takes the first receive out of receives_ that a message from this peer fits; null if none does.
  Current take_match(Pair& pair, int32_t tag);
  void drop_receive(std::list<Current>::iterator at);
  bool move_slots(Finished& finished);
  // These two move at most `most` slots, and return how many they did.
  uint32_t fill_slots(Pair& pair, uint32_t most, Finished& finished);
  uint32_t take_slots(Pair& pair, uint32_t most, Finished& finished);
  // True if a pair has got on.
  bool join_some();
  bool join(Pair& pair);
  // Ends a join that the peer has ended; false if it has not.
  bool finish_join(Pair& pair);
  void note_join(const Pair& pair);
  bool joining() const { return join_pause_.count() > 0; }
  Pair& pair_with(uint32_t peer);
  Pair* find_pair(int peer) const;  // null if there is none
  bool receiving_from(Pair& pair) const;
  bool needs(Pair& pair) const;
  void finish(const Current& message, Finished& finished);
  // Takes it out of what has_work() looks at.
  void forget(const Message& message);
  void forget_all();  // with mutex_ held
  void set_phase(Phase phase);

  // Failures (messenger_errors.cpp): these throw Trouble.
  void compare(const Current& receive, const Incoming& incoming, const Pair& pair) const;
  void check_receiver(Pair& pair, const Current& send);
  void look_for_trouble(Finished& finished);
  void look_for_causes(Finished& finished);
  void look_for_losses(Finished& finished);
  void look_for_deadlines(Finished& finished);
  void withdraw(const Current& message, const std::string& why, int peer, Finished& finished);
  void fail(Trouble trouble, Finished& finished);
  ErrorInfo without_message(const Trouble& trouble) const;

  // First causes (messenger_causes.cpp). Those that are told are another rank's; nullopt if there
  // is none.
  std::optional<Trouble> told_by_regions() const;
  std::optional<Trouble> told_by_store();
  // What a peer that has not joined says in the store; notes there if it left.
  std::optional<Trouble> hear_of(Pair& pair);
  std::optional<Trouble> read_cause(uint64_t word) const;
  void latch_everywhere(ErrorKind kind, int peer, uint32_t reporter);
  void set_state(const std::string& state) const;
  void say_left() const;
  // Unless all ranks can see it in their regions. Never throws.
  void leave_in_store(const std::string& state) const;
  void leave_in_store(ErrorKind kind, int peer, uint32_t reporter) const;

  // Sentences for errors.
  std::string name(int rank) const { return identity_.name(static_cast<uint32_t>(rank)); }
  std::string waiting_for_peer(const Message& message, int& peer) const;
  std::string what_came_from(int peer) const;

  MessengerOptions options_;
  std::shared_ptr<KeyValueStore> store_;

  // Guarded by mutex_.
  std::map<uint64_t, Current> pending_;                // by sequence number: all that is not done
  std::vector<Current> posted_;                        // those of them that nobody has served yet
  std::vector<uint32_t> naming_;                       // [peer] pending messages that name it
  uint32_t from_any_ = 0;                              // pending receives from any rank
  std::vector<std::shared_ptr<shm::Region>> regions_;  // [peer], as soon as there is one
  uint32_t joined_ = 0;                                // pairs that have joined
  std::chrono::microseconds join_poll_{0};             // how often joins look for progress; 0: none

  // Owned by whoever serves.
  std::vector<std::unique_ptr<Pair>> pairs_;  // [peer]
  std::vector<Pair*> open_;                   // those that there are
  std::list<Current> receives_;               // that no message has met, in order of posting
  uint32_t open_to_any_ = 0;                  // those of them from any rank
  uint64_t arrivals_ = 0;                     // messages that have begun to arrive
  size_t next_to_move_ = 0;
  size_t next_to_join_ = 0;
  std::chrono::microseconds join_pause_{0};  // what join_poll_ is
  Clock::time_point next_join_{};
  Clock::time_point next_look_at_store_{};
  size_t next_to_hear_of_ = 0;

  uint32_t no_phase_ = 0;
};

}  // namespace hybridcomm
