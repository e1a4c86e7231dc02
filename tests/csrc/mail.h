// Messengers whose ranks are threads, and messages whose every byte is known beforehand.
#pragma once

#include <cstring>
#include <map>
#include <mutex>
#include <numeric>

#include "engine/messenger.h"
#include "ranks.h"

namespace mail {

using namespace ranks;
using Bytes = std::vector<std::byte>;

// Several threads ask it at once.
struct LockedStore : KeyValueStore {
  std::mutex mutex;
  std::map<std::string, std::string> entries;

  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard<std::mutex> lock(mutex);
    entries[key] = value;
  }
  std::optional<std::string> try_get(const std::string& key) override {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto at = entries.find(key);
    return at == entries.end() ? std::nullopt : std::optional(at->second);
  }
};

// The messengers of all ranks of one group, over memory that all of them map.
class Office {
 public:
  explicit Office(uint32_t world, uint64_t slot_bytes = 256, uint32_t slots = 2,
                  milliseconds timeout = milliseconds(20'000)) {
    MessengerOptions options;
    options.group = "test";
    options.world = world;
    options.slots = slots;
    options.slot_bytes = slot_bytes;
    options.timeout = timeout;
    memberships_.resize(world, std::vector<shm::Membership>(world));
    for (uint32_t low = 0; low < world; ++low) {
      for (uint32_t high = low + 1; high < world; ++high) {
        shm::Membership pair;
        pair.region = shm::Region::create_anonymous({2, 1, slots, slot_bytes});
        pair.processes.assign(2, Process::self());
        memberships_[low][high] = memberships_[high][low] = pair;
      }
    }
    for (options.rank = 0; options.rank < world; ++options.rank) {
      messengers_.push_back(Messenger::attach(options, memberships_[options.rank]));
    }
  }
  uint32_t world() const { return static_cast<uint32_t>(messengers_.size()); }
  Messenger& operator[](uint32_t rank) const { return *messengers_[rank]; }
  shm::Region& region(uint32_t a, uint32_t b) const { return *memberships_[a][b].region; }

  void each(const std::function<void(uint32_t)>& body) const {
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < world(); ++rank) threads.emplace_back(body, rank);
    for (std::thread& thread : threads) thread.join();
  }

 private:
  std::vector<std::vector<shm::Membership>> memberships_;
  std::vector<std::shared_ptr<Messenger>> messengers_;
};

// Bytes that differ from message to message and within each.
inline Bytes pattern(uint64_t seed, uint64_t size) {
  Bytes bytes(size);
  uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

// Empty if the bytes are the pattern's, else where they first differ.
inline std::string difference(const Bytes& bytes, uint64_t seed) {
  const Bytes expected = pattern(seed, bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != expected[i])
      return "byte " + std::to_string(i) + " of message " + std::to_string(seed);
  }
  return {};
}

inline MessageArguments arguments(MessageArguments::Kind kind, int peer, Bytes& bytes,
                                  int tag = 0) {
  MessageArguments result;
  result.kind = kind;
  result.peer = peer;
  result.tag = tag;
  result.count = bytes.size();
  result.buffer = {bytes.data(), bytes.size()};
  return result;
}

inline MessageArguments send_to(uint32_t peer, Bytes& bytes, int tag = 0) {
  return arguments(MessageArguments::Kind::kSend, static_cast<int>(peer), bytes, tag);
}

inline MessageArguments recv_from(int peer, Bytes& bytes, int tag = 0) {
  return arguments(MessageArguments::Kind::kRecv, peer, bytes, tag);
}

inline constexpr milliseconds kForever{0};
inline constexpr int kAny = -1;

}  // namespace mail
