// The flight recorder as torch knows it: what is entered, and the dump.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "engine/flight_recorder.h"

namespace hybridcomm {

// The name of a collective in entries: what torch's analyzer knows it by. `name` is torch's;
// `uneven` if the tensors of a list differ in length.
const char* recorded_name(c10d::OpType type, const char* name, bool uneven);

// The shape of what goes in or comes out. Tensors of one shape: their number in front of it, as if
// they were one; of different shapes: their elements in all.
Outline outline(const std::vector<at::Tensor>& tensors);

// Whether HYBRIDCOMM_FR_FRAMES=1 asks for where in Python operations are called.
bool frames_wanted();
// Where Python is now.
std::shared_ptr<void> current_frames();

// Everything in the recorder, pickled as torch's version 2.10. Takes the interpreter's lock only if
// there are frames to name.
std::string dump_flight_recorder(bool only_active);

// After an operation of the group's rank has failed: writes the dump to the file that
// TORCH_FR_DUMP_TEMP_FILE, or else TORCH_NCCL_DEBUG_INFO_TEMP_FILE, followed by `rank` names; does
// nothing if neither is set, or if the failure is the user's doing. Throws nothing.
void dump_after(ErrorKind failure, uint64_t rank);

}  // namespace hybridcomm
