// How ranks tell each other why messages ended: in the regions of their pairs, and in the store for
// ranks that wait for another to join.
//
// In the store each rank has a word of its own: empty while all is well, "left", or the first cause
// (transports/shm/layout.h). Whoever waits for that rank to join looks at it.
#include <exception>

#include "engine/messenger.h"
#include "engine/messenger_pair.h"
#include "transports/shm/cause.h"

namespace hybridcomm {
namespace {

constexpr char kLeft[] = "left";
// How often to look at how many peers.
constexpr std::chrono::milliseconds kStoreInterval{10};
constexpr uint32_t kPeersAtOnce = 4;

std::string state_key(uint32_t rank) { return "hybridcomm/p2p/state/" + std::to_string(rank); }

}  // namespace

void Messenger::tell_peers(ErrorKind kind, int peer) {
  latch_everywhere(kind, peer, options_.rank);
}

void Messenger::failed_idle(const ErrorInfo& info) {
  leave_in_store(info.kind, info.peer, options_.rank);
}

void Messenger::latch_everywhere(ErrorKind kind, int peer, uint32_t reporter) {
  std::vector<std::shared_ptr<shm::Region>> regions;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    regions = regions_;
  }
  for (const std::shared_ptr<shm::Region>& region : regions) {
    if (region == nullptr) continue;
    shm::latch_cause(region->header().cause, kind, peer, reporter);
    ring(region->control(0).bell);
    ring(region->control(1).bell);
  }
}

void Messenger::set_state(const std::string& state) const {
  store_->set(state_key(options_.rank), state);
}

void Messenger::say_left() const {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // What has failed says why.
    if (left_ || failure_) return;
  }
  leave_in_store(kLeft);
}

void Messenger::leave_in_store(ErrorKind kind, int peer, uint32_t reporter) const {
  shm::Cause cause;
  shm::latch_cause(cause, kind, peer, reporter);
  leave_in_store(std::to_string(cause.word));
}

void Messenger::leave_in_store(const std::string& state) const {
  if (store_ == nullptr) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (joined_ + 1 == options_.world) return;  // all know it from their regions
  }
  try {
    set_state(state);
  } catch (const std::exception&) {
    // The store is gone as well: what went wrong first is what the caller must hear.
  }
}

std::optional<Trouble> Messenger::told_by_store() {
  const Clock::time_point now = Clock::now();
  if (now < next_look_at_store_) return std::nullopt;
  next_look_at_store_ = now + kStoreInterval;
  uint32_t budget = kPeersAtOnce;
  const size_t pairs = open_.size();
  for (size_t i = 0; i < pairs && budget > 0; ++i) {
    if (++next_to_hear_of_ >= pairs) next_to_hear_of_ = 0;
    Pair& pair = *open_[next_to_hear_of_];
    if (pair.joined() || pair.left() || !needs(pair)) continue;
    --budget;
    if (std::optional<Trouble> told = hear_of(pair)) return told;
  }
  return std::nullopt;
}

std::optional<Trouble> Messenger::hear_of(Pair& pair) {
  if (store_ == nullptr) return std::nullopt;
  uint64_t word = 0;
  try {
    const std::string state = store_->try_get(state_key(pair.peer())).value_or("");
    if (state.empty()) return std::nullopt;
    if (state == kLeft) {
      // It may have joined, and sent, before it left.
      if (!finish_join(pair)) pair.note_left();
      return std::nullopt;
    }
    word = std::stoull(state);
  } catch (const std::exception&) {
    return std::nullopt;  // the store is gone: whoever joins will say so
  }
  return read_cause(word);
}

std::optional<Trouble> Messenger::told_by_regions() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const std::shared_ptr<shm::Region>& region : regions_) {
    if (region == nullptr) continue;
    const uint64_t word = observe(region->header().cause.word);
    if (word == 0) continue;
    if (std::optional<Trouble> told = read_cause(word)) return told;
  }
  return std::nullopt;
}

std::optional<Trouble> Messenger::read_cause(uint64_t word) const {
  const auto [kind, blamed, reporter] = shm::read_cause(word);
  const int own = static_cast<int>(options_.rank);
  const int world = static_cast<int>(options_.world);
  // Of what was found on this rank we know more.
  if (reporter == own) return std::nullopt;
  // The word lies in memory that a peer writes.
  if (blamed >= world || reporter < 0 || reporter >= world) {
    return Trouble{ErrorKind::kSystem, -1, "the group failed; its cause is unreadable", nullptr,
                   own};
  }
  const std::string who = blamed < 0 ? "a rank" : blamed == own ? "this rank" : name(blamed);
  const std::string by = " (reported by " + name(reporter) + ")";
  std::string why;
  switch (kind) {
    case ErrorKind::kPeerLost: why = who + " died, or ended or destroyed the group" + by; break;
    case ErrorKind::kTimeout:
      why = name(reporter) + " timed out in the middle of a message, waiting for " + who;
      break;
    case ErrorKind::kMismatch:
      why = name(reporter) + " and " + who +
            " disagree, about a message or about their set-up; see the error of " + name(reporter);
      break;
    case ErrorKind::kAborted: why = who + " aborted the group (abort() or Ctrl-C)"; break;
    default: why = "the group failed on " + name(reporter) + "; see that rank's error";
  }
  const bool known = kind > ErrorKind::kNone && kind <= ErrorKind::kSystem;
  // Of two ranks that disagree each blames the other.
  const bool with_us = kind == ErrorKind::kMismatch && blamed == own;
  return Trouble{known ? kind : ErrorKind::kSystem, with_us ? reporter : blamed, why, nullptr,
                 reporter};
}

}  // namespace hybridcomm
