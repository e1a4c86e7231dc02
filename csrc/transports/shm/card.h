// Calling cards: what a rank says of its process in the store when it makes a group.
//
// Until two ranks share memory they know nothing of each other, and a rank that died before it came
// could only be noticed by a time-out. A card lets whoever waits for that rank find its process by
// number, if both see the same process ids, and tells at once if the rank can never come, because
// it runs on another host. Cards never decide that two ranks share a host: only the memory does.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/process.h"
#include "base/store.h"

namespace hybridcomm::shm {

class Card {
 public:
  // Puts this process's card for `rank` into the store.
  static void leave(uint32_t rank, KeyValueStore& store);

  explicit Card(uint32_t rank) : rank_(rank) {}

  // Looks for the card, and then after its process, no more often than is worth while. Throws
  // CommError: kPeerLost if the process has died, kInvalid if it runs where this group cannot
  // reach.
  void watch(KeyValueStore& store);

 private:
  using Clock = std::chrono::steady_clock;

  uint32_t rank_;
  Clock::time_point next_look_ = Clock::now() + std::chrono::milliseconds(20);
  std::string text_;
  std::shared_ptr<Process> process_;
  Clock::time_point found_dead_{};
};

}  // namespace hybridcomm::shm
