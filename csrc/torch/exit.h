// What becomes of groups when the program ends without destroying them.
#pragma once

#include <memory>

#include "engine/service.h"

namespace hybridcomm {

// Has `leave_groups` leave this group.
void leave_at_exit(const std::shared_ptr<Service>& service);

// Leaves all groups and waits until nothing that they set off runs any more. Called while the
// interpreter is still whole, so that no thread of ours has a reason to touch it when it is not.
void leave_groups();

// For a thread whose wait has failed. If it failed because this program ends, on another thread,
// this call does not return: the interpreter is about to go, and a thread that comes back from a
// wait asks for its lock, which would then end the program with an abort. (From 3.14 on Python
// itself keeps such threads.)
void stay_if_leaving();

}  // namespace hybridcomm
