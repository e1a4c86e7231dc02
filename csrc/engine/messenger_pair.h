// What one rank shares with one other for their messages: a region of two ranks, of which the lower
// is rank 0, and in it one link each way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "base/process.h"
#include "base/store.h"
#include "engine/identity.h"
#include "engine/message.h"
#include "transports/shm/join.h"

namespace hybridcomm {

// What a message begins with.
//
//   layout    the first 64 bytes of the message's first slot; its payload follows, as much as fits.
//             All other slots are payload only, and full but for the last. So slots of 64 bytes
//             carry an envelope and then the payload. An empty message is one slot.
//   ordering  the link's: written before the slot is published, read after it was observed, and
//             copied once, since its writer could change it while it is checked
//   lifetime  the slot's; it is given back together with the payload that it holds
//   overflow  64-bit numbers, which start from 1 on each link; tags are the caller's 32 bits
struct Envelope {
  uint64_t number;  // of the message on this link, from 1
  uint64_t bytes;   // of payload, in all slots together
  uint64_t count;   // elements: bytes / size of dtype
  int32_t tag;
  uint8_t dtype;  // DType
  uint8_t reserved[35];
};
static_assert(sizeof(Envelope) == kCacheLine && std::is_trivially_copyable_v<Envelope>);

// A message that has begun to arrive and that no receive has had in full.
struct Incoming {
  Envelope envelope;
  uint64_t order = 0;                // among all that arrive at this rank
  uint64_t arrived = 0;              // bytes of payload
  bool begun = false;                // its first slot was taken
  std::shared_ptr<Message> receive;  // where it goes; null: into memory
  // Grows with what came, not to what was announced.
  std::vector<std::byte> memory;

  bool complete() const { return begun && arrived == envelope.bytes; }
};

// Why the group's messages must end; thrown by whoever finds out.
struct Trouble {
  ErrorKind kind = ErrorKind::kNone;
  int peer = -1;
  std::string why{};
  std::shared_ptr<Message> message{};  // the one it happened to; null: all alike
  int reporter = -1;                   // another rank that found out first
};

class Pair {
 public:
  // Costs nothing until the first join().
  Pair(const Identity& identity, uint32_t peer, const shm::Shape& shape,
       std::shared_ptr<KeyValueStore> store, Clock::time_point created);

  uint32_t peer() const { return peer_; }

  // ---- joining
  // -----------------------------------------------------------------------------------

  // One step; true once both sides have joined. Throws Trouble in the group's ranks.
  bool join();
  // Uses what is mapped already.
  void adopt(shm::Membership membership);
  bool joined() const { return joined_; }
  // As soon as there is one, also before both have joined.
  const std::shared_ptr<shm::Region>& region() const { return region_; }

  // Whether the peer's process lives: whoever has not joined counts as alive, since join() throws
  // when it is not. A peer that leaves and ends may have left() since it was not alive(): ask in
  // this order.
  bool alive() const { return process_ == nullptr || process_->alive(); }
  // Whether the peer has destroyed the group.
  bool left() const;
  // That it has done so before it joined.
  void note_left();
  bool failed() const { return observe(region_->header().cause.word) != 0; }

  // ---- sending
  // -----------------------------------------------------------------------------------

  std::deque<std::shared_ptr<Message>> sends;  // in the order of submission

  bool slot_free() { return out_.ready(); }
  // Fills a free slot with what comes next of the first send; true if that was its last byte.
  bool fill_slot();

  // ---- receiving
  // ---------------------------------------------------------------------------------

  uint32_t receives = 0;  // receives that name this peer and that no message has met

  bool slot_full() { return in_.ready(); }
  // The message that the next slot belongs to; null if that slot begins one.
  Incoming* arriving();
  // Opens the message that the next slot begins. Throws Trouble if its envelope makes no sense.
  Incoming& open_envelope(uint64_t order);
  // Takes the next slot, which belongs to arriving(); true if that was its last byte. Throws
  // Trouble if the slot is not as long as it must be.
  bool empty_slot();
  // Has a message go to a receive that it fits, with what of it is in memory.
  void deliver(Incoming& incoming, const std::shared_ptr<Message>& receive);

  const std::list<Incoming>& incoming() const { return incoming_; }
  // The first message with this tag that no receive has met; null if there is none.
  Incoming* find_unmet(int32_t tag);
  void remove(const Incoming& incoming);
  void clear();

 private:
  uint32_t own_index() const { return identity_.rank < peer_ ? 0 : 1; }
  uint64_t payload_of_first_slot() const { return shape_.slot_bytes - sizeof(Envelope); }
  std::string in_group_terms(const std::string& text) const;

  const Identity& identity_;
  const uint32_t peer_;
  const shm::Shape shape_;
  std::shared_ptr<KeyValueStore> store_;  // the pair's part of the group's
  const Clock::time_point created_;

  std::unique_ptr<shm::Join> join_;
  std::shared_ptr<shm::Region> region_;
  std::shared_ptr<Process> process_;  // the peer's
  bool joined_ = false;
  bool left_ = false;

  LinkOut out_;
  LinkIn in_;
  uint64_t sent_ = 0;      // messages that have begun to leave
  uint64_t received_ = 0;  // messages that have begun to arrive
  std::list<Incoming> incoming_;
};

}  // namespace hybridcomm
