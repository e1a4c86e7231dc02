// How the ranks of a group on one host come to share memory.
//
// Rank 0 makes the memfd, listens on a socket of the abstract namespace (nothing to clean up) and
// says so in the store. Every other rank connects; then, in packets of SOCK_SEQPACKET:
//
//   rank → 0   Hello    version, rank, shape, the token from the store, identity, proof  + pidfd
//   0 → rank   Welcome  rank 0's identity                          + memfd, rank 0's pidfd
//              or Refusal, with a sentence that the refused rank raises
//   rank → 0   Mapped   after it has read the nonce and written its proof into the memory
//   0 → rank   Members  identities of all ranks, in packets of 200  + their pidfds
//
// The memory handed over and read back in both directions is the proof that the two are on one
// host; host names and environment are not asked. The peer's uid (SO_PEERCRED) and the token keep
// other users and other jobs out.
//
// If rank 0 gives up, its entry in the store becomes the reason, with the host's monotonic time.
// Groups made one after the other may share their place in the store, and rank 0 may give up before
// another rank has even made the group. So a rank believes a reason that it has not heard before,
// unless it is a minute older than its own group: that is an earlier group's.
//
// Everything is resumable: advance() never blocks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/store.h"
#include "transports/shm/region.h"

namespace hybridcomm::shm {

struct Membership {
  std::shared_ptr<Region> region;
  std::vector<std::shared_ptr<Process>> processes;  // [world]
};

class Join {
 public:
  // `created`: when this rank made the group.
  static std::unique_ptr<Join> start(uint32_t rank, const Shape& shape,
                                     std::shared_ptr<KeyValueStore> store,
                                     Clock::time_point created);
  virtual ~Join() = default;

  // One step; true once membership() is complete. Throws CommError: kPeerLost (with the rank) if a
  // rank died, kMismatch if a rank has another shape or version, kSystem if the system refused.
  virtual bool advance() = 0;
  // Rank 0: tells the ranks that have not come yet why they need not.
  static void give_up(KeyValueStore& store, const ErrorInfo& info);
  // What it waits for, for a time-out's message: "rank 3 to join", and the rank (or -1).
  virtual std::string waiting_for(int& peer) const = 0;

  // The region as soon as there is one, for causes to be latched in; null before.
  const std::shared_ptr<Region>& region() const { return membership_.region; }
  Membership take() { return std::move(membership_); }

 protected:
  Membership membership_;
};

}  // namespace hybridcomm::shm
