// Messages around a ring, whose every byte is known beforehand.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "driver/options.h"
#include "driver/workload.h"
#include "engine/messenger.h"

namespace hybridcomm::driver {

// A group's messages, whose pairs join through `table`.
std::shared_ptr<Messenger> join_messages(const Options& options, uint32_t rank, uint32_t world,
                                         SharedTable& table, uint32_t* phase);

// Each rank sends to the next and receives from the one before.
class Exchange {
 public:
  Exchange(const Options& options, uint32_t rank, uint32_t world)
      : options_(options), rank_(rank), world_(world) {}

  // Exchange number `iteration`; throws what it throws. Returns a description of the first wrong
  // byte, empty if there is none.
  std::string run(Messenger& messenger, uint64_t iteration);

 private:
  std::byte value(uint64_t iteration, uint32_t rank, uint64_t index) const;

  const Options& options_;
  uint32_t rank_;
  uint32_t world_;
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
};

}  // namespace hybridcomm::driver
