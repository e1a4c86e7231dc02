// The event record_param_comms, whose details torch's profiler adds to its trace.
#include "torch/profiling.h"

#include <memory>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <tuple>
#include <utility>

namespace hybridcomm {
namespace {

int64_t elements(const std::vector<at::Tensor>& tensors) {
  int64_t sum = 0;
  for (const at::Tensor& tensor : tensors) sum += tensor.numel();
  return sum;
}

// The distance from each rank to the next; 0 if they differ, in which case torch knows no ranks.
int stride(const std::vector<uint64_t>& ranks) {
  if (ranks.size() < 2) return 1;
  const auto step = static_cast<int64_t>(ranks[1]) - static_cast<int64_t>(ranks[0]);
  for (size_t i = 2; i < ranks.size(); ++i) {
    if (static_cast<int64_t>(ranks[i]) - static_cast<int64_t>(ranks[i - 1]) != step) return 0;
  }
  return step > 0 ? static_cast<int>(step) : 0;
}

}  // namespace

void ProfilerEvent::begin(const ProfiledCall& call) {
  const std::tuple group(call.group, call.description);
  const auto sequence = static_cast<int64_t>(call.sequence);
  const int step = stride(call.global_ranks);
  const int first = step > 0 ? static_cast<int>(call.global_ranks.front()) : -1;
  const auto world = static_cast<int>(call.global_ranks.size());
  const std::vector<at::Tensor>& model = call.inputs.empty() ? call.outputs : call.inputs;
  auto details = std::make_shared<torch::ParamCommsDebugInfo>(
      group, call.rank, std::string(call.name), elements(call.inputs), elements(call.outputs),
      model.empty() ? at::kByte : model.front().scalar_type(), call.input_splits,
      call.output_splits, first, step, world, call.async);
  details->setSequenceInfo(sequence, call.message);
  details_.emplace(c10::DebugInfoKind::PARAM_COMMS_INFO, details);

  event_.emplace(at::RecordScope::FUNCTION);
  if (!event_->isActive()) return;
  if (event_->needsInputs()) {
    described_.reserve(11);
    described_.emplace_back(call.inputs);
    described_.emplace_back(std::tuple(sequence, call.message));
    described_.emplace_back(group);
    described_.emplace_back(call.rank);
    described_.emplace_back(call.name);
    described_.emplace_back(call.input_splits);
    described_.emplace_back(call.output_splits);
    described_.emplace_back(first);
    described_.emplace_back(step);
    described_.emplace_back(world);
    described_.emplace_back(call.async);
    event_->before(at::kParamCommsCallName,
                   c10::ArrayRef<const c10::IValue>(described_.data(), described_.size()));
  } else {
    event_->before(at::kParamCommsCallName);
  }
  if (!event_->needsOutputs()) return;
  std::vector<c10::IValue> outputs;
  outputs.emplace_back(call.outputs);
  event_->setOutputs(std::move(outputs));
}

}  // namespace hybridcomm
