// Joining as a group of two, and messages in slots.
#include "engine/messenger_pair.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <utility>

namespace hybridcomm {
namespace {

// A pair's own corner of the group's store. The cards are the group's: its members left them there.
class PairStore final : public KeyValueStore {
 public:
  PairStore(std::shared_ptr<KeyValueStore> store, uint32_t low, uint32_t high)
      : store_(std::move(store)), ranks_{std::to_string(low), std::to_string(high)} {}

  void set(const std::string& key, const std::string& value) override {
    store_->set(translated(key), value);
  }
  std::optional<std::string> try_get(const std::string& key) override {
    return store_->try_get(translated(key));
  }

 private:
  std::string translated(const std::string& key) const {
    const std::string card = "hybridcomm/card/";
    if (key == card + "0") return card + ranks_[0];
    if (key == card + "1") return card + ranks_[1];
    return "hybridcomm/p2p/" + ranks_[0] + "-" + ranks_[1] + "/" + key;
  }

  std::shared_ptr<KeyValueStore> store_;
  std::string ranks_[2];
};

}  // namespace

Pair::Pair(const Identity& identity, uint32_t peer, const shm::Shape& shape,
           std::shared_ptr<KeyValueStore> store, Clock::time_point created)
    : identity_(identity), peer_(peer), shape_(shape), created_(created) {
  if (store == nullptr) return;
  const auto [low, high] = std::minmax(identity.rank, peer);
  store_ = std::make_shared<PairStore>(std::move(store), low, high);
}

// ---- joining ------------------------------------------------------------------------------------

bool Pair::join() {
  if (joined_) return true;
  try {
    if (join_ == nullptr) join_ = shm::Join::start(own_index(), shape_, store_, created_);
    const bool done = join_->advance();
    region_ = join_->region();
    if (!done) return false;
    adopt(join_->take());
    join_.reset();
    return true;
  } catch (const CommError& error) {
    const auto [low, high] = std::minmax(identity_.rank, peer_);
    const ErrorInfo& info = error.info();
    Trouble trouble;
    trouble.kind = info.kind;
    trouble.peer = info.peer == 0   ? static_cast<int>(low)
                   : info.peer == 1 ? static_cast<int>(high)
                                    : -1;
    trouble.why = in_group_terms(info.message);
    throw trouble;
  }
}

// A Join knows only ranks 0 and 1.
std::string Pair::in_group_terms(const std::string& text) const {
  const auto [low, high] = std::minmax(identity_.rank, peer_);
  const auto replaced = [](std::string where, const std::string& what, const std::string& by) {
    for (size_t at = 0; (at = where.find(what, at)) != std::string::npos;) {
      const size_t after = at + what.size();
      if (after < where.size() && std::isdigit(static_cast<unsigned char>(where[after]))) {
        at = after;
        continue;
      }
      where.replace(at, what.size(), by);
      at += by.size();
    }
    return where;
  };
  // In two steps, so that a rank that was put in is not taken for one of the pair's.
  std::string result = replaced(text, "ranks 0 and 1", "ranks \1 and \2");
  result = replaced(replaced(result, "rank 0", "\3"), "rank 1", "\4");
  result = replaced(replaced(result, "\1", std::to_string(low)), "\2", std::to_string(high));
  return replaced(replaced(result, "\3", identity_.name(low)), "\4", identity_.name(high));
}

void Pair::adopt(shm::Membership membership) {
  const uint32_t own = own_index();
  region_ = std::move(membership.region);
  process_ = membership.processes[1 - own];
  out_ = region_->link_out(0, own, 1 - own);
  in_ = region_->link_in(0, 1 - own, own);
  joined_ = true;
}

bool Pair::left() const {
  if (!joined_) return left_;
  return observe(region_->control(1 - own_index()).state) ==
         static_cast<uint32_t>(shm::RankState::kLeft);
}

void Pair::note_left() {
  left_ = true;
  join_.reset();
}

// ---- sending ------------------------------------------------------------------------------------

bool Pair::fill_slot() {
  Message& message = *sends.front();
  const Buffer& buffer = message.arguments_.buffer;
  std::byte* slot = out_.slot();
  uint64_t size = 0;
  uint64_t room = shape_.slot_bytes;
  if (!message.begun_) {
    Envelope envelope{};
    envelope.number = ++sent_;
    envelope.bytes = buffer.bytes;
    envelope.count = message.arguments_.count;
    envelope.tag = message.arguments_.tag;
    envelope.dtype = static_cast<uint8_t>(message.arguments_.dtype);
    std::memcpy(slot, &envelope, sizeof(envelope));
    message.begun_ = true;
    message.begin();
    size = sizeof(envelope);
    room = payload_of_first_slot();
  }
  const uint64_t payload = std::min(room, buffer.bytes - message.moved_);
  if (payload > 0) {
    std::memcpy(slot + size, static_cast<const std::byte*>(buffer.data) + message.moved_, payload);
  }
  message.moved_ += payload;
  out_.publish_slot(static_cast<uint32_t>(size + payload));
  return message.moved_ == buffer.bytes;
}

// ---- receiving ----------------------------------------------------------------------------------

Incoming* Pair::arriving() {
  return incoming_.empty() || incoming_.back().complete() ? nullptr : &incoming_.back();
}

Incoming& Pair::open_envelope(uint64_t order) {
  Envelope envelope;
  std::memcpy(&envelope, in_.slot(), sizeof(envelope));
  const auto refuse = [&](const std::string& what) {
    Trouble trouble;
    trouble.kind = ErrorKind::kSystem;
    trouble.peer = static_cast<int>(peer_);
    trouble.why = identity_.name(peer_) + " sent a message that makes no sense: " + what;
    throw trouble;
  };
  if (envelope.number != received_ + 1) {
    refuse("its number is " + std::to_string(envelope.number) + " where " +
           std::to_string(received_ + 1) + " was due");
  }
  const uint64_t element = dtype_size(static_cast<DType>(envelope.dtype));
  if (element == 0) refuse("its dtype has code " + std::to_string(envelope.dtype));
  if (envelope.count > UINT64_MAX / element || envelope.bytes != envelope.count * element) {
    refuse("it has " + std::to_string(envelope.bytes) + " bytes for " +
           std::to_string(envelope.count) + " elements of " +
           dtype_name(static_cast<DType>(envelope.dtype)));
  }
  if (std::any_of(std::begin(envelope.reserved), std::end(envelope.reserved),
                  [](uint8_t byte) { return byte != 0; })) {
    refuse("its reserved bytes are not zero");
  }
  ++received_;
  Incoming& incoming = incoming_.emplace_back();
  incoming.envelope = envelope;
  incoming.order = order;
  return incoming;
}

bool Pair::empty_slot() {
  Incoming& incoming = incoming_.back();
  const uint64_t head = incoming.begun ? 0 : sizeof(Envelope);
  const uint64_t payload =
      std::min(shape_.slot_bytes - head, incoming.envelope.bytes - incoming.arrived);
  if (in_.size() != head + payload) {
    Trouble trouble;
    trouble.kind = ErrorKind::kSystem;
    trouble.peer = static_cast<int>(peer_);
    trouble.why = identity_.name(peer_) + " sent " + std::to_string(in_.size()) + " bytes where " +
                  std::to_string(head + payload) + " were due";
    trouble.message = incoming.receive;
    throw trouble;
  }
  const std::byte* from = in_.slot() + head;
  if (incoming.receive != nullptr) {
    Message& receive = *incoming.receive;
    // Of the receive's own size: deliver() is for messages that fit.
    if (payload > 0) {
      std::memcpy(static_cast<std::byte*>(receive.arguments_.buffer.data) + incoming.arrived, from,
                  payload);
    }
    receive.moved_ += payload;
  } else {
    incoming.memory.insert(incoming.memory.end(), from, from + payload);
  }
  incoming.arrived += payload;
  incoming.begun = true;
  in_.release_slot();
  return incoming.complete();
}

void Pair::deliver(Incoming& incoming, const std::shared_ptr<Message>& receive) {
  receive->begun_ = true;
  receive->begin();
  receive->source_ = static_cast<int>(peer_);
  receive->moved_ = incoming.arrived;
  if (!incoming.memory.empty()) {
    std::memcpy(receive->arguments_.buffer.data, incoming.memory.data(), incoming.memory.size());
    incoming.memory = {};
  }
  incoming.receive = receive;
}

Incoming* Pair::find_unmet(int32_t tag) {
  for (Incoming& incoming : incoming_) {
    if (incoming.receive == nullptr && incoming.envelope.tag == tag) return &incoming;
  }
  return nullptr;
}

void Pair::remove(const Incoming& incoming) {
  incoming_.remove_if([&](const Incoming& other) { return &other == &incoming; });
}

void Pair::clear() {
  join_.reset();
  sends.clear();
  receives = 0;
  incoming_.clear();
}

}  // namespace hybridcomm
