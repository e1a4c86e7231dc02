// What a profiler that listens is told of a call, beyond its name.
#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <optional>
#include <string>
#include <vector>

namespace hybridcomm {

// A call in the terms of torch's record_param_comms.
struct ProfiledCall {
  uint64_t sequence;
  bool message;
  std::string group;
  std::string description;
  std::vector<uint64_t> global_ranks;  // of the group
  int rank;                            // this rank of the group; of a message: the peer
  const char* name;
  bool async;
  const std::vector<at::Tensor>& inputs;
  const std::vector<at::Tensor>& outputs;
  // Elements to and from each rank, where a call names them.
  std::vector<int64_t> input_splits;
  std::vector<int64_t> output_splits;
};

// An event of the profiler, from begin() to destruction on the same thread. Costs nothing unless
// begun; begin it only if at::hasCallbacks().
class ProfilerEvent {
 public:
  void begin(const ProfiledCall& call);

 private:
  std::vector<c10::IValue> described_;
  std::optional<c10::DebugInfoGuard> details_;
  std::optional<at::RecordFunction> event_;
};

}  // namespace hybridcomm
