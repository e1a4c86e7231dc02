// One round of the ring.
#include "driver/exchange.h"

#include "transports/shm/card.h"

namespace hybridcomm::driver {
namespace {

MessageArguments arguments(MessageArguments::Kind kind, int peer, int32_t tag,
                           std::vector<std::byte>& bytes) {
  MessageArguments result;
  result.kind = kind;
  result.peer = peer;
  result.tag = tag;
  result.count = bytes.size();
  result.buffer = {bytes.data(), bytes.size()};
  return result;
}

}  // namespace

std::shared_ptr<Messenger> join_messages(const Options& options, uint32_t rank, uint32_t world,
                                         SharedTable& table, uint32_t* phase) {
  const auto store = std::make_shared<SharedStore>(table);
  shm::Card::leave(rank, *store);
  MessengerOptions group;
  group.group = "driver";
  group.rank = rank;
  group.world = world;
  group.slots = options.shape.slots;
  group.slot_bytes = options.shape.slot_bytes;
  group.timeout = std::chrono::milliseconds(options.timeout_ms);
  group.phase = phase;
  return Messenger::create(group, store);
}

std::byte Exchange::value(uint64_t iteration, uint32_t rank, uint64_t index) const {
  return static_cast<std::byte>((index * 5 + rank * 3 + iteration) % 251);
}

std::string Exchange::run(Messenger& messenger, uint64_t iteration) {
  const uint32_t next = (rank_ + 1) % world_;
  const uint32_t before = (rank_ + world_ - 1) % world_;
  out_.resize(options_.count);
  in_.assign(options_.count, std::byte{0xff});
  for (uint64_t i = 0; i < out_.size(); ++i) out_[i] = value(iteration, rank_, i);
  const auto tag = static_cast<int32_t>(iteration % 1000);
  // Only the one before sends here, so now and then any will do.
  const int source = iteration % 8 == 7 ? -1 : static_cast<int>(before);
  const auto send = arguments(MessageArguments::Kind::kSend, static_cast<int>(next), tag, out_);
  const auto receive = arguments(MessageArguments::Kind::kRecv, source, tag, in_);
  if (options_.async) {
    const auto receiving = messenger.submit(receive);
    const auto sending = messenger.submit(send);
    messenger.wait(sending, std::chrono::milliseconds(0));
    messenger.wait(receiving, std::chrono::milliseconds(0));
  } else if (rank_ % 2 == 0) {
    messenger.run(send);
    messenger.run(receive);
  } else {
    messenger.run(receive);
    messenger.run(send);
  }
  for (uint64_t i = 0; i < in_.size(); ++i) {
    if (in_[i] == value(iteration, before, i)) continue;
    return "message " + std::to_string(iteration) + " from rank " + std::to_string(before) +
           " on rank " + std::to_string(rank_) + ": byte " + std::to_string(i);
  }
  return {};
}

}  // namespace hybridcomm::driver
