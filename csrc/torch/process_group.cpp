// From torch's calls to operations of the core.
#include "torch/process_group.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/reduce.h"
#include "torch/errors.h"
#include "torch/exit.h"
#include "torch/interpreter.h"
#include "torch/store.h"

namespace hybridcomm {
namespace {

// Longer ones would overflow the clock, which counts nanoseconds.
constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 365 * 100);

std::shared_ptr<Communicator> make_communicator(c10::intrusive_ptr<c10d::Store> store, int rank,
                                                int size,
                                                const ProcessGroupHybridcomm::Options& options) {
  return translating([&] {
    if (const char* why = reduce_isa_error()) throw CommError(ErrorKind::kInvalid, why);
    CommunicatorOptions core;
    core.group = options.group_name;
    core.rank = static_cast<uint32_t>(rank);
    core.shape = choose_shape(static_cast<uint32_t>(size), options.preferences);
    core.timeout = std::min(options.timeout, kLongestTimeout);
    core.global_ranks = options.global_ranks_in_group;
    if (core.timeout.count() <= 0) {
      throw CommError(ErrorKind::kInvalid, "timeout must be positive, is " +
                                               std::to_string(core.timeout.count()) + " ms");
    }
    return Communicator::create(std::move(core), std::make_shared<TorchStore>(std::move(store)));
  });
}

std::string item(const char* list, size_t index) {
  return std::string(list) + "[" + std::to_string(index) + "]";
}

// Two outputs in the same memory would leave one of the results nowhere.
void refuse_shared_outputs(const CallSite& site, const std::vector<at::Tensor>& outputs) {
  if (const auto shared = find_shared_elements(outputs)) {
    site.refuse(item("tensor_list", shared->second),
                "it shares memory with " + item("tensor_list", shared->first));
  }
}

}  // namespace

using Group = ProcessGroupHybridcomm;
const Group::Kind Group::kAllReduce{Collective::kAllReduce, c10d::OpType::ALLREDUCE,
                                    "hybridcomm:all_reduce"};
const Group::Kind Group::kBroadcast{Collective::kBroadcast, c10d::OpType::BROADCAST,
                                    "hybridcomm:broadcast"};
const Group::Kind Group::kAllGather{Collective::kAllGather, c10d::OpType::ALLGATHER,
                                    "hybridcomm:all_gather"};
const Group::Kind Group::kAllGatherBase{Collective::kAllGather, c10d::OpType::_ALLGATHER_BASE,
                                        "hybridcomm:_all_gather_base"};
const Group::Kind Group::kBarrier{Collective::kBarrier, c10d::OpType::BARRIER,
                                  "hybridcomm:barrier"};

ProcessGroupHybridcomm::ProcessGroupHybridcomm(c10::intrusive_ptr<c10d::Store> store, int rank,
                                               int size, c10::intrusive_ptr<Options> options)
    : Backend(rank, size),
      options_(std::move(options)),
      communicator_(make_communicator(std::move(store), rank, size, *options_)),
      group_(communicator_->options().group),
      process_id_(getpid()) {
  leave_at_exit(communicator_);
  init();
}

ProcessGroupHybridcomm::~ProcessGroupHybridcomm() {
  if (process_id_ != getpid()) {
    // In a forked child: the group is the parent's, and a thread of the parent may have held its
    // lock when the child was made.
    new std::shared_ptr<Communicator>(std::move(communicator_));
    return;
  }
  // Work that is still referenced keeps the communicator, so it does not end by itself.
  shutdown();
}

// ---- collectives --------------------------------------------------------------------------------

c10::intrusive_ptr<c10d::Work> ProcessGroupHybridcomm::allreduce(
    std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) {
  const CallSite site = call_site(kAllReduce);
  const at::Tensor& tensor = site.only(tensors, "tensors");
  const Elements elements = site.check_output(tensor, "tensor");
  const RedOp op = site.check_reduction(tensor, "tensor", elements.dtype, options.reduceOp);
  OperationArguments call = arguments(kAllReduce, elements, op, std::nullopt, options.timeout);
  Operands operands;
  call.inputs = call.outputs = {operands.update(tensor)};
  return start(kAllReduce, std::move(call), std::move(operands), tensors, {tensor},
               options.asyncOp);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupHybridcomm::broadcast(
    std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) {
  const CallSite site = call_site(kBroadcast);
  const at::Tensor& tensor = site.only(tensors, "tensors");
  if (options.rootRank < 0 || options.rootRank >= size_) {
    site.refuse("src", "rank " + std::to_string(options.rootRank) +
                           " is not in the group, which has ranks 0 to " +
                           std::to_string(size_ - 1));
  }
  if (options.rootTensor != 0) {
    site.refuse("rootTensor", std::to_string(options.rootTensor) +
                                  " given, and there is one tensor on each rank: use 0");
  }
  const bool is_root = options.rootRank == rank_;
  const Elements elements =
      is_root ? site.check(tensor, "tensor") : site.check_output(tensor, "tensor");
  OperationArguments call = arguments(kBroadcast, elements, RedOp::kSum,
                                      static_cast<uint32_t>(options.rootRank), options.timeout);
  Operands operands;
  call.inputs = call.outputs = {is_root ? operands.read(tensor) : operands.write(tensor)};
  return start(kBroadcast, std::move(call), std::move(operands), tensors, {tensor},
               options.asyncOp);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupHybridcomm::allgather(
    std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
    const c10d::AllgatherOptions& options) {
  const CallSite site = call_site(kAllGather);
  const at::Tensor& input = site.only(inputs, "input_tensors");
  const std::vector<at::Tensor>& list = site.only(outputs, "output_tensors");
  const Elements elements = site.check(input, "tensor");
  if (list.size() != static_cast<size_t>(size_)) {
    site.refuse("tensor_list", std::to_string(list.size()) + " output tensors given, but " +
                                   std::to_string(size_) + " are needed, one for each rank");
  }
  for (size_t i = 0; i < list.size(); ++i) {
    site.check_output(list[i], item("tensor_list", i));
    site.check_match(list[i], item("tensor_list", i), input.numel(), input, "tensor");
  }
  refuse_shared_outputs(site, list);
  OperationArguments call =
      arguments(kAllGather, elements, RedOp::kSum, std::nullopt, options.timeout);
  Operands operands;
  for (const at::Tensor& output : list) call.outputs.push_back(operands.write(output));
  gather_from(input, call, operands);
  return start(kAllGather, std::move(call), std::move(operands), inputs, list, options.asyncOp);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupHybridcomm::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  const CallSite site = call_site(kAllGatherBase);
  const Elements elements = site.check(input, "input_tensor");
  site.check_output(output, "output_tensor");
  site.check_match(output, "output_tensor", input.numel() * size_, input, "input_tensor");
  OperationArguments call =
      arguments(kAllGatherBase, elements, RedOp::kSum, std::nullopt, options.timeout);
  Operands operands;
  const Buffer whole = operands.write(output);
  const uint64_t part = whole.bytes / static_cast<uint64_t>(size_);
  for (int rank = 0; rank < size_; ++rank) {
    call.outputs.push_back({static_cast<std::byte*>(whole.data) + rank * part, part});
  }
  gather_from(input, call, operands);
  return start(kAllGatherBase, std::move(call), std::move(operands), {input}, {output},
               options.asyncOp);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupHybridcomm::barrier(
    const c10d::BarrierOptions& options) {
  OperationArguments call =
      arguments(kBarrier, {DType::kUInt8, 0}, RedOp::kSum, std::nullopt, options.timeout);
  return start(kBarrier, std::move(call), Operands(), {}, {}, options.asyncOp);
}

void ProcessGroupHybridcomm::gather_from(const at::Tensor& input, OperationArguments& call,
                                         Operands& operands) const {
  Buffer own = operands.read(input);
  for (size_t rank = 0; rank < call.outputs.size(); ++rank) {
    const Buffer& output = call.outputs[rank];
    // In place is fine: the input is exactly this rank's part of the output.
    const bool in_place = rank == static_cast<size_t>(rank_) && own.data == output.data;
    if (in_place || !overlap(own, output)) continue;
    own = operands.copy(own);
    break;
  }
  call.inputs = {own};
}

// ---- the way of every collective ----------------------------------------------------------------

CallSite ProcessGroupHybridcomm::call_site(const Kind& kind) const {
  return CallSite(collective_name(kind.collective), rank_, group_);
}

OperationArguments ProcessGroupHybridcomm::arguments(const Kind& kind, Elements elements, RedOp op,
                                                     std::optional<uint32_t> root,
                                                     std::chrono::milliseconds timeout) {
  return translating([&] {
    const auto world = static_cast<uint32_t>(size_);
    OperationArguments call;
    call.algorithm =
        choose_algorithm(kind.collective, elements.dtype, op, world, options_->preferences);
    call.program = find_program(kind.collective, call.algorithm, world,
                                static_cast<uint32_t>(rank_), root, shape().channels);
    call.dtype = elements.dtype;
    call.redop = op;
    call.count = elements.count;
    // Not set: the group's.
    if (timeout.count() > 0) call.timeout = std::min(timeout, kLongestTimeout);
    return call;
  });
}

c10::intrusive_ptr<c10d::Work> ProcessGroupHybridcomm::start(
    const Kind& kind, OperationArguments arguments, Operands operands,
    const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs, bool async) {
  auto work = c10::make_intrusive<WorkHybridcomm>(communicator_, kind.type, kind.title, inputs,
                                                  std::move(outputs), std::move(operands));
  if (async) {
    work->submit(*communicator_, std::move(arguments));
    return work;
  }
  work->run(*communicator_, std::move(arguments));
  return nullptr;
}

// ---- the group ----------------------------------------------------------------------------------

void ProcessGroupHybridcomm::setTimeout(std::chrono::milliseconds timeout) {
  translating([&] { communicator_->set_timeout(std::min(timeout, kLongestTimeout)); });
  options_->timeout = timeout;
}

c10d::ErrorType ProcessGroupHybridcomm::getError() {
  const std::optional<ErrorInfo> failure = communicator_->failure();
  if (!failure) return c10d::ErrorType::SUCCESS;
  switch (failure->kind) {
    case ErrorKind::kTimeout: return c10d::ErrorType::TIMEOUT;
    case ErrorKind::kPeerLost: return c10d::ErrorType::REMOTE_ERROR;
    default: return c10d::ErrorType::COMM_ERROR;
  }
}

void ProcessGroupHybridcomm::abort() {
  const ReleaseGil released;
  communicator_->abort("abort() was called");
}

void ProcessGroupHybridcomm::shutdown() {
  const ReleaseGil released;
  communicator_->shutdown();
}

}  // namespace hybridcomm
