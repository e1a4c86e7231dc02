// How messages end early, and what their errors say: each names the message, this rank, and the
// rank to blame with what is known of it.
#include <algorithm>
#include <chrono>

#include "engine/messenger.h"
#include "engine/messenger_pair.h"

namespace hybridcomm {
namespace {

// Tags or ranks that a sentence lists.
constexpr uint32_t kMostListed = 8;

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
  if (!told && joining()) told = told_by_store();
  if (told) {
    // What a rank sent before it died still counts.
    Pair* lost = find_pair(told->peer);
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
    if (!needs(*pair)) continue;
    const bool alive = pair->alive();
    const bool left = pair->left();
    if (alive && !left) {
      may_send = true;
      continue;
    }
    // It will fill no more slots than there are.
    if (pair->joined()) take_slots(*pair, options_.slots, finished);
    Current waiting;
    if (const Incoming* arriving = pair->arriving()) waiting = arriving->receive;
    if (waiting == nullptr && !pair->sends.empty()) waiting = pair->sends.front();
    for (const Current& receive : receives_) {
      const int source = receive->arguments_.peer;
      const bool from_it = source == static_cast<int>(pair->peer()) || (source < 0 && !left);
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
        "Timed out after " + std::to_string(message->timeout_.count()) + " ms waiting for " + what;
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
    Pair* pair = find_pair(message->arguments_.peer);
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
    Pair* blamed = find_pair(trouble.peer);
    if (!first && blamed != nullptr && !blamed->joined()) first = hear_of(*blamed);
    if (first) trouble = std::move(*first);
  }
  const bool own = trouble.reporter < 0;
  const uint32_t reporter = own ? options_.rank : static_cast<uint32_t>(trouble.reporter);
  latch_everywhere(trouble.kind, trouble.peer, reporter);
  leave_in_store(trouble.kind, trouble.peer, reporter);
  if (own) {
    // Another rank may just have been faster.
    if (std::optional<Trouble> first = told_by_regions()) trouble = std::move(*first);
  }

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

// ---- sentences ----------------------------------------------------------------------------------

std::string Messenger::waiting_for_peer(const Message& message, int& peer) const {
  const std::string part = size_text(message.moved_) + " of " + size_text(message.bytes());
  peer = message.arguments_.peer;
  if (message.receives()) {
    if (message.begun_) {
      peer = message.source_;
      return name(peer) + " to send the rest of the message, of which " + part + " have come";
    }
    if (peer >= 0) return name(peer) + " to send" + what_came_from(peer);
    std::string all = "any rank to send";
    uint32_t listed = 0;
    for (int rank = 0; rank < static_cast<int>(options_.world); ++rank) {
      if (rank == static_cast<int>(options_.rank)) continue;
      if (++listed > kMostListed) return all + "; ...";
      all += "; " + name(rank) + what_came_from(rank);
    }
    return all;
  }
  if (message.begun_) {
    return name(peer) + " to receive the rest of the message, of which " + part + " are sent";
  }
  const Pair* pair = find_pair(peer);
  if (pair == nullptr || !pair->joined()) {
    return name(peer) + " to receive, which has not joined: it has called no send or recv with " +
           "this rank";
  }
  return name(peer) + " to receive earlier messages, which fill all slots";
}

std::string Messenger::what_came_from(int peer) const {
  const Pair* pair = find_pair(peer);
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
