// How messages end early, and what their errors say: each names the message, this rank, and the
// rank to blame with what is known of it.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <sstream>

#include "engine/messenger.h"
#include "engine/messenger_pair.h"
#include "transports/shm/cause.h"

namespace hybridcomm {
namespace {

// "1 WORD NANOSECONDS": a first cause (transports/shm/layout.h), and when it was left.
constexpr char kFailed[] = "hybridcomm/p2p/failed";
constexpr std::chrono::milliseconds kStoreInterval{10};
// Tags or ranks that a sentence lists.
constexpr uint32_t kMostListed = 8;

int64_t nanoseconds(Clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

std::string described(DType dtype, uint64_t count) {
  return std::to_string(count) + " " + dtype_name(dtype);
}

}  // namespace

// ---- finding trouble ----------------------------------------------------------------------------

void Messenger::compare(const Current& receive, const Incoming& incoming, const Pair& pair) const {
  const MessageArguments& ours = receive->arguments();
  const auto dtype = static_cast<DType>(incoming.envelope.dtype);
  if (ours.dtype == dtype && ours.count == incoming.envelope.count) return;
  const int peer = static_cast<int>(pair.peer());
  throw Trouble{
      ErrorKind::kMismatch, peer,
      "the ranks disagree: " + name(peer) + " sent " + described(dtype, incoming.envelope.count) +
          " with tag " + std::to_string(incoming.envelope.tag) + " (its message " +
          std::to_string(incoming.envelope.number) + " to this rank), which " +
          identity_.name(options_.rank) + " receives as " + described(ours.dtype, ours.count) +
          ": a send and its receive must have the same dtype and number of elements",
      receive};
}

void Messenger::check_receiver(Pair& pair, const Current& send) {
  if (pair.failed()) {
    if (std::optional<Trouble> told = told_by_regions()) throw std::move(*told);
  }
  if (!pair.left()) return;
  const int peer = static_cast<int>(pair.peer());
  throw Trouble{ErrorKind::kPeerLost, peer, name(peer) + " ended or destroyed the group", send};
}

void Messenger::look_for_trouble(Finished& finished) {
  look_for_causes(finished);
  look_for_losses(finished);
  look_for_deadlines(finished);
}

void Messenger::look_for_causes(Finished& finished) {
  std::optional<Trouble> told = told_by_regions();
  if (!told && joining_some_ && Clock::now() >= next_look_at_store_) {
    next_look_at_store_ = Clock::now() + kStoreInterval;
    told = told_by_store();
  }
  if (told) {
    // What a rank sent before it died still counts.
    Pair* lost = told->peer < 0 ? nullptr : pairs_[static_cast<uint32_t>(told->peer)].get();
    if (told->kind == ErrorKind::kPeerLost && lost != nullptr && lost->joined()) {
      take_slots(*lost, options_.slots, finished);
    }
    throw std::move(*told);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (abort_reason_) {
    throw Trouble{ErrorKind::kAborted, static_cast<int>(options_.rank),
                  "aborted on this rank: " + *abort_reason_};
  }
  if (outside_) {
    throw Trouble{outside_->kind, outside_->peer,
                  "not finished, because the group failed: " + outside_->message};
  }
}

void Messenger::look_for_losses(Finished& finished) {
  bool may_send = false;
  for (Pair* pair : open_) {
    if (!pair->joined()) {
      may_send = true;
      continue;
    }
    if (!needs(*pair)) continue;
    const bool left = pair->left();
    const bool dead = !left && !pair->alive();
    if (!left && !dead) {
      may_send = true;
      continue;
    }
    // It will fill no more slots than there are.
    take_slots(*pair, options_.slots, finished);
    Current waiting;
    if (const Incoming* arriving = pair->arriving()) waiting = arriving->receive;
    if (waiting == nullptr && !pair->sends.empty()) waiting = pair->sends.front();
    for (const Current& receive : receives_) {
      const int source = receive->arguments_.peer;
      const bool from_it = source == static_cast<int>(pair->peer()) || (source < 0 && dead);
      if (waiting == nullptr && from_it) waiting = receive;
    }
    if (waiting == nullptr) continue;
    const int peer = static_cast<int>(pair->peer());
    const std::string when = waiting->begun_       ? " in the middle of the message"
                             : waiting->receives() ? " before it sent a message that fits"
                                                   : " before it received the message";
    throw Trouble{ErrorKind::kPeerLost, peer,
                  name(peer) + (left ? " ended or destroyed the group" : " died") + when, waiting};
  }
  if (may_send || open_to_any_ == 0) return;
  const auto any = std::find_if(receives_.begin(), receives_.end(), [](const Current& receive) {
    return receive->arguments_.peer < 0;
  });
  throw Trouble{ErrorKind::kPeerLost, -1,
                "every other rank ended or destroyed the group before one sent a message that fits",
                *any};
}

void Messenger::look_for_deadlines(Finished& finished) {
  const Clock::time_point now = Clock::now();
  std::vector<Current> late;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [sequence, message] : pending_) {
      if (now >= message->deadline_) late.push_back(message);
    }
  }
  for (const Current& message : late) {
    int peer = -1;
    const std::string what = waiting_for_peer(*message, peer);
    const std::string why =
        "timed out after " + std::to_string(message->timeout_.count()) + " ms waiting for " + what;
    if (message->begun_) throw Trouble{ErrorKind::kTimeout, peer, why, message};
    withdraw(message, why, peer, finished);
  }
}

void Messenger::withdraw(const Current& message, const std::string& why, int peer,
                         Finished& finished) {
  if (message->receives()) {
    const auto at = std::find(receives_.begin(), receives_.end(), message);
    if (at == receives_.end()) return;  // posted just now; the next turn withdraws it
    drop_receive(at);
  } else {
    Pair* pair = pairs_[static_cast<uint32_t>(message->arguments_.peer)].get();
    if (pair == nullptr || std::erase(pair->sends, message) == 0) return;
  }
  settle(*message, std::make_unique<const ErrorInfo>(
                       identity_.describe(*message, ErrorKind::kTimeout, peer, why)));
  finished.push_back(message);
  forget(*message);
}

// ---- failing ------------------------------------------------------------------------------------

void Messenger::fail(Trouble trouble, Finished& finished) {
  // The first cause goes before what this rank found by itself: it names the rank that died, not
  // the one that gave up next.
  if (trouble.reporter < 0) {
    std::optional<Trouble> first = told_by_regions();
    if (!first) first = told_by_store();
    if (first) trouble = std::move(*first);
  }
  const uint32_t reporter =
      trouble.reporter < 0 ? options_.rank : static_cast<uint32_t>(trouble.reporter);
  latch_everywhere(trouble.kind, trouble.peer, reporter);
  if (trouble.reporter < 0) {
    // Another rank may just have been faster.
    if (std::optional<Trouble> first = told_by_regions()) trouble = std::move(*first);
  }
  if (!all_have_joined()) leave_in_store(trouble.kind, trouble.peer, reporter);

  const std::lock_guard<std::mutex> lock(mutex_);
  if (trouble.message != nullptr) {
    note_failure(identity_.describe(*trouble.message, trouble.kind, trouble.peer, trouble.why));
  } else {
    note_failure(without_message(trouble));
  }
  for (const auto& [sequence, message] : pending_) {
    const bool itself = trouble.message == nullptr || trouble.message == message;
    settle(*message,
           std::make_unique<const ErrorInfo>(identity_.describe(
               *message, trouble.kind, trouble.peer,
               itself ? trouble.why
                      : "not finished, because another message failed: " + failure_->message)));
    finished.push_back(message);
  }
  forget_all();
}

ErrorInfo Messenger::without_message(const Trouble& trouble) const {
  ErrorInfo info;
  info.kind = trouble.kind;
  info.group = identity_.group;
  info.rank = static_cast<int>(identity_.rank);
  info.peer = trouble.peer;
  info.message = "messages of group '" + identity_.group + "' on " +
                 identity_.name(identity_.rank) + ": " + trouble.why;
  return info;
}

// ---- telling others, and being told -------------------------------------------------------------

void Messenger::tell_peers(ErrorKind kind, int peer) {
  latch_everywhere(kind, peer, options_.rank);
}

void Messenger::failed_idle(const ErrorInfo& info) {
  if (!all_have_joined()) leave_in_store(info.kind, info.peer, options_.rank);
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

bool Messenger::all_have_joined() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t joined = 1;
  for (const std::shared_ptr<shm::Region>& region : regions_) joined += region != nullptr;
  return joined == options_.world && !joining_;
}

void Messenger::leave_in_store(ErrorKind kind, int peer, uint32_t reporter) const {
  if (store_ == nullptr) return;
  shm::Cause cause;
  shm::latch_cause(cause, kind, peer, reporter);
  try {
    store_->set(kFailed, "1 " + std::to_string(cause.word) + " " +
                             std::to_string(nanoseconds(Clock::now())));
  } catch (const std::exception&) {
    // The store is gone as well: what went wrong first is what the caller must hear.
  }
}

std::optional<Trouble> Messenger::told_by_store() const {
  if (store_ == nullptr || all_have_joined()) return std::nullopt;
  std::optional<std::string> entry;
  try {
    entry = store_->try_get(kFailed);
  } catch (const std::exception&) {
    return std::nullopt;  // whoever joins will find that out as well
  }
  if (!entry) return std::nullopt;
  std::istringstream fields(*entry);
  std::string version;
  uint64_t word = 0;
  int64_t at = 0;
  fields >> version >> word >> at;
  // Groups made one after the other may share their place in the store.
  if (!fields || version != "1" || at < nanoseconds(created_)) return std::nullopt;
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
      why = "what " + who + " sent, " + name(reporter) +
            " received as something else; see the error of " + name(reporter);
      break;
    case ErrorKind::kAborted: why = who + " aborted the group (abort() or Ctrl-C)"; break;
    default: why = "the group failed on " + name(reporter) + "; see that rank's error";
  }
  const bool known = kind > ErrorKind::kNone && kind <= ErrorKind::kSystem;
  return Trouble{known ? kind : ErrorKind::kSystem, blamed, why, nullptr, reporter};
}

// ---- sentences ----------------------------------------------------------------------------------

std::string Messenger::waiting_for_peer(const Message& message, int& peer) const {
  const std::string part = size_text(message.moved_) + " of " + size_text(message.bytes());
  peer = message.arguments_.peer;
  if (message.receives()) {
    if (message.begun_) {
      peer = message.source_;
      return name(peer) + " to send the rest of the message, of which " + part + " have come";
    }
    if (peer >= 0) return name(peer) + " to send" + what_came_from(static_cast<uint32_t>(peer));
    std::string all = "any rank to send";
    for (uint32_t rank = 0, listed = 0; rank < options_.world; ++rank) {
      if (rank == options_.rank) continue;
      if (++listed > kMostListed) return all + "; ...";
      all += "; " + name(static_cast<int>(rank)) + what_came_from(rank);
    }
    return all;
  }
  if (message.begun_) {
    return name(peer) + " to receive the rest of the message, of which " + part + " are sent";
  }
  const Pair* pair = pairs_[static_cast<uint32_t>(peer)].get();
  if (pair == nullptr || !pair->joined()) {
    return name(peer) + " to receive, which has not joined: it has called no send or recv with " +
           "this rank";
  }
  return name(peer) + " to receive earlier messages, which fill all slots";
}

std::string Messenger::what_came_from(uint32_t peer) const {
  const Pair* pair = pairs_[peer].get();
  if (pair == nullptr || !pair->joined()) {
    return ", which has not joined: it has called no send or recv with this rank";
  }
  std::string tags;
  uint32_t listed = 0;
  for (const Incoming& incoming : pair->incoming()) {
    if (incoming.receive != nullptr) continue;
    if (++listed > kMostListed) {
      tags += ", ...";
      break;
    }
    tags += (tags.empty() ? "" : ", ") + std::to_string(incoming.envelope.tag);
  }
  if (tags.empty()) return ", which has sent nothing else";
  return ", which has sent messages with tags " + tags + ", but none with this one";
}

}  // namespace hybridcomm
