// From torch's collectives to operations of the core: which tensors, checked how, in which buffers.
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <utility>

#include "base/reduce.h"
#include "torch/errors.h"
#include "torch/process_group.h"

namespace hybridcomm {
namespace {

std::string item(const char* list, size_t index) {
  return std::string(list) + "[" + std::to_string(index) + "]";
}

// The lengths of one tensor for each rank.
struct Lengths {
  bool even = true;
  uint64_t total = 0;
  uint64_t first = 0;
  uint64_t digest = 0;

  // What ranks compare (OperationArguments).
  uint64_t count() const { return even ? first : total; }
  uint64_t splits() const { return even ? 0 : digest; }
};

Lengths measure(const std::vector<at::Tensor>& list) {
  Lengths lengths;
  lengths.first = static_cast<uint64_t>(list.front().numel());
  lengths.digest = 0xcbf29ce484222325u;  // FNV-1a, a length at a time
  for (const at::Tensor& tensor : list) {
    const auto length = static_cast<uint64_t>(tensor.numel());
    lengths.even = lengths.even && length == lengths.first;
    lengths.total += length;
    lengths.digest = (lengths.digest ^ length) * 0x100000001b3u;
  }
  // 0 means even.
  lengths.digest |= 1;
  return lengths;
}

}  // namespace

using Group = ProcessGroupHybridcomm;
using c10d::OpType;

const Group::Kind Group::kAllReduce{Collective::kAllReduce, OpType::ALLREDUCE, "all_reduce",
                                    "hybridcomm:all_reduce"};
const Group::Kind Group::kBroadcast{Collective::kBroadcast, OpType::BROADCAST, "broadcast",
                                    "hybridcomm:broadcast"};
const Group::Kind Group::kReduce{Collective::kReduce, OpType::REDUCE, "reduce",
                                 "hybridcomm:reduce"};
const Group::Kind Group::kAllGather{Collective::kAllGather, OpType::ALLGATHER, "all_gather",
                                    "hybridcomm:all_gather"};
const Group::Kind Group::kAllGatherTensor{Collective::kAllGather, OpType::_ALLGATHER_BASE,
                                          "all_gather_into_tensor",
                                          "hybridcomm:all_gather_into_tensor"};
const Group::Kind Group::kReduceScatter{Collective::kReduceScatter, OpType::REDUCE_SCATTER,
                                        "reduce_scatter", "hybridcomm:reduce_scatter"};
const Group::Kind Group::kReduceScatterTensor{Collective::kReduceScatter,
                                              OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor",
                                              "hybridcomm:reduce_scatter_tensor"};
const Group::Kind Group::kGather{Collective::kGather, OpType::GATHER, "gather",
                                 "hybridcomm:gather"};
const Group::Kind Group::kScatter{Collective::kScatter, OpType::SCATTER, "scatter",
                                  "hybridcomm:scatter"};
const Group::Kind Group::kAllToAll{Collective::kAllToAll, OpType::ALLTOALL, "all_to_all",
                                   "hybridcomm:all_to_all"};
const Group::Kind Group::kAllToAllSingle{Collective::kAllToAll, OpType::ALLTOALL_BASE,
                                         "all_to_all_single", "hybridcomm:all_to_all_single"};
const Group::Kind Group::kBarrier{Collective::kBarrier, OpType::BARRIER, "barrier",
                                  "hybridcomm:barrier"};

// ---- reductions ---------------------------------------------------------------------------------

Group::WorkPtr Group::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  Call call = begin(kAllReduce);
  const at::Tensor& tensor = call.site.only(tensors, "tensors");
  if (tensor.defined() && tensor.is_sparse()) return allreduce_sparse(tensors, options);
  const Elements elements = call.site.check_output(tensor, "tensor");
  const RedOp op = call.site.check_reduction(tensor, "tensor", elements.dtype, options.reduceOp);
  choose(call, elements, op, std::nullopt, options.timeout);
  if (op == RedOp::kPremulSum) {
    call.arguments.inputs = {contribution(call, tensor, options.reduceOp)};
    call.arguments.outputs = {call.operands.write(tensor)};
  } else {
    call.arguments.inputs = call.arguments.outputs = {call.operands.update(tensor)};
  }
  call.inputs = call.outputs = tensors;
  return start(std::move(call), options.asyncOp);
}

Group::WorkPtr Group::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  Call call = begin(kReduce);
  const at::Tensor& tensor = call.site.only(tensors, "tensors");
  check_root(call.site, "dst", options.rootRank, options.rootTensor);
  const bool is_root = options.rootRank == rank_;
  const Elements elements =
      is_root ? call.site.check_output(tensor, "tensor") : call.site.check(tensor, "tensor");
  const RedOp op = call.site.check_reduction(tensor, "tensor", elements.dtype, options.reduceOp);
  choose(call, elements, op, static_cast<uint32_t>(options.rootRank), options.timeout);
  // Only the root's tensor changes.
  if (!is_root || op == RedOp::kPremulSum) {
    call.arguments.inputs = {contribution(call, tensor, options.reduceOp)};
    if (is_root) call.arguments.outputs = {call.operands.write(tensor)};
  } else {
    call.arguments.inputs = call.arguments.outputs = {call.operands.update(tensor)};
  }
  call.inputs = call.outputs = tensors;
  return start(std::move(call), options.asyncOp);
}

Group::WorkPtr Group::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                     const c10d::ReduceScatterOptions& options) {
  Call call = begin(kReduceScatter);
  const at::Tensor& output = call.site.only(outputs, "output_tensors");
  const Tensors& list = call.site.only(inputs, "input_tensors");
  const Elements elements = call.site.check_output(output, "output");
  check_list(call.site, list, "input_list", output, "output", false);
  const Lengths lengths = measure(list);
  call.site.check_match(output, "output", list[rank_].numel(), list[rank_],
                        item("input_list", rank_));
  const RedOp op = call.site.check_reduction(output, "output", elements.dtype, options.reduceOp);
  choose(call, {elements.dtype, lengths.count()}, op, std::nullopt, options.timeout);
  call.arguments.splits = lengths.splits();
  for (const at::Tensor& input : list) {
    call.arguments.inputs.push_back(contribution(call, input, options.reduceOp));
  }
  call.arguments.outputs = {place_output(call, output)};
  call.inputs = list;
  call.outputs = {output};
  return start(std::move(call), options.asyncOp);
}

Group::WorkPtr Group::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                           const c10d::ReduceScatterOptions& options) {
  Call call = begin(kReduceScatterTensor);
  const Elements elements = call.site.check_output(output, "output");
  call.site.check(input, "input");
  call.site.check_match(input, "input", output.numel() * size_, output, "output");
  const RedOp op = call.site.check_reduction(output, "output", elements.dtype, options.reduceOp);
  choose(call, elements, op, std::nullopt, options.timeout);
  call.arguments.inputs = even_parts(contribution(call, input, options.reduceOp));
  call.arguments.outputs = {place_output(call, output)};
  call.inputs = {input};
  call.outputs = {output};
  return start(std::move(call), options.asyncOp);
}

Buffer Group::contribution(Call& call, const at::Tensor& tensor, const c10d::ReduceOp& op) const {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return call.operands.read(tensor);
  const auto* given = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  if (given == nullptr) call.site.refuse("op", "PREMUL_SUM comes without a factor");
  return call.operands.scaled(tensor, *given);
}

// ---- one rank's data to others ------------------------------------------------------------------

Group::WorkPtr Group::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  Call call = begin(kBroadcast);
  const at::Tensor& tensor = call.site.only(tensors, "tensors");
  check_root(call.site, "src", options.rootRank, options.rootTensor);
  const bool is_root = options.rootRank == rank_;
  const Elements elements =
      is_root ? call.site.check(tensor, "tensor") : call.site.check_output(tensor, "tensor");
  choose(call, elements, RedOp::kSum, static_cast<uint32_t>(options.rootRank), options.timeout);
  call.arguments.inputs =
      call.arguments.outputs = {is_root ? call.operands.read(tensor) : call.operands.write(tensor)};
  call.inputs = call.outputs = tensors;
  return start(std::move(call), options.asyncOp);
}

Group::WorkPtr Group::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                              const c10d::ScatterOptions& options) {
  Call call = begin(kScatter);
  const at::Tensor& output = call.site.only(outputs, "output_tensors");
  check_root(call.site, "src", options.rootRank, 0);
  const Elements elements = call.site.check_output(output, "tensor");
  if (options.rootRank == rank_) {
    const Tensors& list = call.site.only(inputs, "input_tensors");
    check_list(call.site, list, "scatter_list", output, "tensor", false);
    for (size_t i = 0; i < list.size(); ++i) {
      call.site.check_match(list[i], item("scatter_list", i), output.numel(), output, "tensor");
      call.arguments.inputs.push_back(call.operands.read(list[i]));
    }
    call.inputs = list;
  } else if (!inputs.empty()) {
    call.site.refuse("scatter_list", "given on a rank that is not the source; only rank " +
                                         std::to_string(options.rootRank) + " gives one");
  }
  choose(call, elements, RedOp::kSum, static_cast<uint32_t>(options.rootRank), options.timeout);
  call.arguments.outputs = {place_output(call, output)};
  call.outputs = {output};
  return start(std::move(call), options.asyncOp);
}

// ---- all ranks' data to some --------------------------------------------------------------------

Group::WorkPtr Group::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                const c10d::AllgatherOptions& options) {
  Call call = begin(kAllGather);
  const at::Tensor& input = call.site.only(inputs, "input_tensors");
  const Tensors& list = call.site.only(outputs, "output_tensors");
  const Elements elements = call.site.check(input, "tensor");
  check_list(call.site, list, "tensor_list", input, "tensor", true);
  const Lengths lengths = measure(list);
  call.site.check_match(list[rank_], item("tensor_list", rank_), input.numel(), input, "tensor");
  choose(call, {elements.dtype, lengths.count()}, RedOp::kSum, std::nullopt, options.timeout);
  call.arguments.splits = lengths.splits();
  for (const at::Tensor& output : list) {
    call.arguments.outputs.push_back(call.operands.write(output));
  }
  gather_from(call, input);
  call.inputs = inputs;
  call.outputs = list;
  return start(std::move(call), options.asyncOp);
}

Group::WorkPtr Group::_allgather_base(at::Tensor& output, at::Tensor& input,
                                      const c10d::AllgatherOptions& options) {
  Call call = begin(kAllGatherTensor);
  const Elements elements = call.site.check(input, "input_tensor");
  call.site.check_output(output, "output_tensor");
  call.site.check_match(output, "output_tensor", input.numel() * size_, input, "input_tensor");
  choose(call, elements, RedOp::kSum, std::nullopt, options.timeout);
  call.arguments.outputs = even_parts(call.operands.write(output));
  gather_from(call, input);
  call.inputs = {input};
  call.outputs = {output};
  return start(std::move(call), options.asyncOp);
}

Group::WorkPtr Group::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                             const c10d::GatherOptions& options) {
  Call call = begin(kGather);
  const at::Tensor& input = call.site.only(inputs, "input_tensors");
  check_root(call.site, "dst", options.rootRank, 0);
  const Elements elements = call.site.check(input, "tensor");
  const bool is_root = options.rootRank == rank_;
  if (is_root) {
    const Tensors& list = call.site.only(outputs, "output_tensors");
    check_list(call.site, list, "gather_list", input, "tensor", true);
    for (size_t i = 0; i < list.size(); ++i) {
      call.site.check_match(list[i], item("gather_list", i), input.numel(), input, "tensor");
      call.arguments.outputs.push_back(call.operands.write(list[i]));
    }
    call.outputs = list;
  } else if (!outputs.empty()) {
    call.site.refuse("gather_list", "given on a rank that is not the destination; only rank " +
                                        std::to_string(options.rootRank) + " gives one");
  }
  choose(call, elements, RedOp::kSum, static_cast<uint32_t>(options.rootRank), options.timeout);
  gather_from(call, input);
  call.inputs = inputs;
  return start(std::move(call), options.asyncOp);
}

// ---- all to all ---------------------------------------------------------------------------------

Group::WorkPtr Group::alltoall(Tensors& outputs, Tensors& inputs,
                               const c10d::AllToAllOptions& options) {
  Call call = begin(kAllToAll);
  if (inputs.empty()) call.site.refuse("input_tensor_list", "it is empty");
  check_list(call.site, inputs, "input_tensor_list", inputs[0], "input_tensor_list[0]", false);
  check_list(call.site, outputs, "output_tensor_list", inputs[0], "input_tensor_list[0]", true);
  const size_t own = static_cast<size_t>(rank_);
  call.site.check_match(outputs[own], item("output_tensor_list", own), inputs[own].numel(),
                        inputs[own], item("input_tensor_list", own));
  const Lengths in = measure(inputs), out = measure(outputs);
  const bool even = in.even && out.even && in.first == out.first;
  const Elements elements = call.site.check(inputs[0], "input_tensor_list[0]");
  choose(call, {elements.dtype, even ? in.first : in.total}, RedOp::kSum, std::nullopt,
         options.timeout);
  for (const at::Tensor& input : inputs) {
    call.arguments.inputs.push_back(call.operands.read(input));
  }
  for (const at::Tensor& output : outputs) {
    call.arguments.outputs.push_back(place_output(call, output));
  }
  call.inputs = inputs;
  call.outputs = outputs;
  return start(std::move(call), options.asyncOp);
}

namespace {

// The elements that go to or come from each rank. Splits count rows, as in torch; none: even.
std::vector<int64_t> elements_of(const CallSite& site, const at::Tensor& tensor,
                                 const char* argument, const std::vector<int64_t>& splits,
                                 const char* splits_argument, int world) {
  const auto ranks = static_cast<size_t>(world);
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (splits.empty()) {
    if (rows % world != 0) {
      site.refuse(argument, "its first dimension, " + std::to_string(rows) +
                                ", is no multiple of the world size, " + std::to_string(world) +
                                "; pass " + splits_argument);
    }
    return std::vector<int64_t>(ranks, tensor.numel() / world);
  }
  if (splits.size() != ranks) {
    site.refuse(splits_argument, std::to_string(splits.size()) + " given, but " +
                                     std::to_string(world) + " are needed, one for each rank");
  }
  for (size_t i = 0; i < ranks; ++i) {
    if (splits[i] < 0) site.refuse(item(splits_argument, i), std::to_string(splits[i]));
  }
  const int64_t sum = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  if (sum != rows) {
    site.refuse(splits_argument, "its sum is " + std::to_string(sum) +
                                     ", but the first dimension of " + argument + " is " +
                                     std::to_string(rows));
  }
  const int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
  std::vector<int64_t> elements(splits);
  for (int64_t& count : elements) count *= row;
  return elements;
}

}  // namespace

Group::WorkPtr Group::alltoall_base(at::Tensor& output, at::Tensor& input,
                                    std::vector<int64_t>& output_splits,
                                    std::vector<int64_t>& input_splits,
                                    const c10d::AllToAllOptions& options) {
  Call call = begin(kAllToAllSingle);
  const Elements elements = call.site.check(input, "input");
  call.site.check_output(output, "output");
  call.site.check_match(output, "output", output.numel(), input, "input");
  std::vector<int64_t> in =
      elements_of(call.site, input, "input", input_splits, "input_split_sizes", size_);
  std::vector<int64_t> out =
      elements_of(call.site, output, "output", output_splits, "output_split_sizes", size_);
  if (in[rank_] != out[rank_]) {
    call.site.refuse("output_split_sizes", "this rank sends itself " + std::to_string(in[rank_]) +
                                               " elements and expects " +
                                               std::to_string(out[rank_]));
  }
  const bool even = in == out && std::equal(in.begin() + 1, in.end(), in.begin());
  choose(call, {elements.dtype, even ? static_cast<uint64_t>(in[0]) : elements.count}, RedOp::kSum,
         std::nullopt, options.timeout);
  for (int64_t& count : in) count *= input.itemsize();
  for (int64_t& count : out) count *= input.itemsize();
  call.arguments.inputs = parts(call.operands.read(input), in);
  call.arguments.outputs = parts(place_output(call, output), out);
  call.inputs = {input};
  call.outputs = {output};
  return start(std::move(call), options.asyncOp);
}

// ---- no data ------------------------------------------------------------------------------------

Group::WorkPtr Group::barrier(const c10d::BarrierOptions& options) {
  Call call = begin(kBarrier);
  choose(call, {DType::kUInt8, 0}, RedOp::kSum, std::nullopt, options.timeout);
  return start(std::move(call), options.asyncOp);
}

// ---- what they have in common -------------------------------------------------------------------

Group::Call Group::begin(const Kind& kind) const {
  return {kind, CallSite(kind.name, rank_, group_), {}, {}, {}, {}};
}

void Group::choose(Call& call, Elements elements, RedOp op, std::optional<uint32_t> root,
                   std::chrono::milliseconds timeout) const {
  translating([&] {
    const auto world = static_cast<uint32_t>(size_);
    const Collective collective = call.kind.collective;
    OperationArguments& arguments = call.arguments;
    arguments.algorithm =
        choose_algorithm(collective, elements.dtype, op, world, options_->preferences);
    arguments.program = find_program(collective, arguments.algorithm, world,
                                     static_cast<uint32_t>(rank_), root, shape().channels);
    arguments.dtype = elements.dtype;
    arguments.redop = op;
    arguments.count = elements.count;
    arguments.timeout = own_timeout(timeout);
  });
}

std::chrono::milliseconds Group::own_timeout(std::chrono::milliseconds given) {
  if (given.count() <= 0) given = call_preferences().timeout;
  return given.count() <= 0 ? std::chrono::milliseconds(0) : std::min(given, kLongestTimeout);
}

void Group::check_root(const CallSite& site, const char* argument, int64_t root,
                       int64_t root_tensor) const {
  if (root < 0 || root >= size_) {
    site.refuse(argument, "rank " + std::to_string(root) +
                              " is not in the group, which has ranks 0 to " +
                              std::to_string(size_ - 1));
  }
  if (root_tensor != 0) {
    site.refuse("rootTensor", std::to_string(root_tensor) +
                                  " given, and there is one tensor on each rank: use 0");
  }
}

void Group::check_list(const CallSite& site, const Tensors& list, const char* argument,
                       const at::Tensor& model, const char* model_argument, bool outputs) const {
  if (list.size() != static_cast<size_t>(size_)) {
    site.refuse(argument, std::to_string(list.size()) + " tensors given, but " +
                              std::to_string(size_) + " are needed, one for each rank");
  }
  for (size_t i = 0; i < list.size(); ++i) {
    if (outputs) {
      site.check_output(list[i], item(argument, i));
    } else {
      site.check(list[i], item(argument, i));
    }
    site.check_dtype(list[i], item(argument, i), model, model_argument);
  }
  if (!outputs) return;
  // Two outputs in the same memory would leave one of the results nowhere.
  if (const auto shared = find_shared_elements(list)) {
    site.refuse(item(argument, shared->second),
                "it shares memory with " + item(argument, shared->first));
  }
}

void Group::gather_from(Call& call, const at::Tensor& input) const {
  Buffer own = call.operands.read(input);
  const std::vector<Buffer>& outputs = call.arguments.outputs;
  for (size_t rank = 0; rank < outputs.size(); ++rank) {
    // In place is fine: the input is exactly this rank's part of the output.
    const bool in_place = rank == static_cast<size_t>(rank_) && own.data == outputs[rank].data;
    if (in_place || !overlap(own, outputs[rank])) continue;
    own = call.operands.copy(own);
    break;
  }
  call.arguments.inputs = {own};
}

Buffer Group::place_output(Call& call, const at::Tensor& output) const {
  const Buffer place = call.operands.write(output);
  const std::vector<Buffer>& inputs = call.arguments.inputs;
  const bool has_in_place = call.kind.collective != Collective::kAllToAll;
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    // In place is fine: the output is exactly this rank's part of the input.
    const bool in_place = has_in_place && rank == static_cast<size_t>(rank_) &&
                          place.data == inputs[rank].data && place.bytes == inputs[rank].bytes;
    if (!in_place && overlap(place, inputs[rank])) return call.operands.write_apart(output);
  }
  return place;
}

std::vector<Buffer> Group::parts(const Buffer& whole, const std::vector<int64_t>& bytes) {
  std::vector<Buffer> result;
  auto* at = static_cast<std::byte*>(whole.data);
  for (const int64_t size : bytes) {
    result.push_back({at, static_cast<uint64_t>(size)});
    at += size;
  }
  return result;
}

std::vector<Buffer> Group::even_parts(const Buffer& whole) const {
  const auto size = static_cast<int64_t>(whole.bytes) / size_;
  return parts(whole, std::vector<int64_t>(static_cast<size_t>(size_), size));
}

Group::WorkPtr Group::start(Call call, bool async) {
  const Batch* const batch = this->batch();
  const char* const title = batch != nullptr && batch->one_title ? nullptr : call.kind.title;
  const RecordedCall recorded = record(call);
  call.arguments.recorded = &recorded;
  ProfilerEvent event;
  if (at::hasCallbacks()) profile(call, async, event);
  auto work = c10::make_intrusive<WorkHybridcomm>(communicator_, observers_, call.kind.type, title,
                                                  call.inputs, std::move(call.outputs),
                                                  std::move(call.operands));
  if (async || batch != nullptr) {
    work->submit(*communicator_, std::move(call.arguments));
    if (batch != nullptr) add_to_batch(work);
    return work;
  }
  work->run(*communicator_, std::move(call.arguments));
  return nullptr;
}

}  // namespace hybridcomm
