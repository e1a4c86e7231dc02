// What a call becomes: which algorithm, which program, through which links. Every choice is a
// function of the call's header and of the group's options, which are the same on all ranks;
// nothing that only one rank knows may enter here.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "base/error.h"
#include "executor/program.h"
#include "transports/shm/layout.h"

namespace hybridcomm {

// hybridcomm.Options: what the user fixed. Absent: chosen here.
struct Preferences {
  std::map<std::string, std::string> algorithms;  // collective -> algorithm
  std::optional<uint32_t> channels;
  std::optional<uint32_t> slots;
  std::optional<uint64_t> slot_bytes;
};

shm::Shape choose_shape(uint32_t world, const Preferences& preferences);

// What one call asks for beyond its group's options, on the thread that makes it.
struct CallPreferences {
  std::string algorithm;       // empty: no preference
  bool deterministic = false;  // one reduction in rank order, rounded once, whatever the algorithm
  std::chrono::milliseconds timeout{0};  // 0: the group's
};
// Of the calls that this thread makes; the old ones are returned, to be put back.
CallPreferences exchange_call_preferences(CallPreferences preferences);
const CallPreferences& call_preferences();

// Throws CommError(kInvalid) if what is asked for contradicts itself.
std::string choose_algorithm(Collective collective, DType dtype, RedOp op, uint32_t world,
                             const Preferences& preferences);

// One rank's program, compiled by hybridcomm/programs when it is first asked for and kept for the
// life of the process. Takes the interpreter's lock that one time only. Throws what Python raises.
std::shared_ptr<const Program> find_program(Collective collective, const std::string& algorithm,
                                            uint32_t world, uint32_t rank,
                                            std::optional<uint32_t> root, uint32_t channels);

}  // namespace hybridcomm
