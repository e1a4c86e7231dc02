// All-reduce of sparse COO tensors: first every rank says how many elements it has, then all
// indices and values are gathered, and each rank adds them up in rank order.
#include <ATen/ATen.h>

#include <cstring>
#include <utility>

#include "torch/errors.h"
#include "torch/process_group.h"

namespace hybridcomm {
namespace {

// What a rank says of its tensor: nnz, the numbers of sparse and dense dimensions, then the sizes.
std::vector<int64_t> shape_of(const at::Tensor& tensor) {
  std::vector<int64_t> shape{tensor._nnz(), tensor.sparse_dim(), tensor.dense_dim()};
  shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
  return shape;
}

// What both stages of one call use; kept by the work, through the tensors it holds.
struct SparseCall {
  at::Tensor tensor;           // the caller's
  at::Tensor indices, values;  // contiguous, of the coalesced tensor
  std::vector<int64_t> own_shape;
  std::vector<int64_t> shapes;  // of all ranks, one after the other
  std::vector<at::Tensor> all_indices, all_values;
  bool average = false;
  int world = 0;
  int rank = 0;

  // How many elements `of` has. The sizes must be the same everywhere.
  int64_t nnz(int of) const {
    const size_t length = own_shape.size();
    const int64_t* theirs = shapes.data() + static_cast<size_t>(of) * length;
    if (!std::equal(own_shape.begin() + 1, own_shape.end(), theirs + 1)) {
      ErrorInfo info;
      info.kind = ErrorKind::kMismatch;
      info.peer = of;
      info.message = "the ranks disagree: rank " + std::to_string(rank) +
                     " gave a sparse tensor of " + describe(own_shape.data()) + ", rank " +
                     std::to_string(of) + " one of " + describe(theirs);
      throw CommError(std::move(info));
    }
    return theirs[0];
  }

  std::string describe(const int64_t* shape) const {
    const auto dims = static_cast<int64_t>(own_shape.size()) - 3;
    return c10::str("sizes ", at::IntArrayRef(shape + 3, static_cast<size_t>(dims)), " with ",
                    shape[1], " sparse dimensions");
  }

  void receive_into(int64_t nnz) {
    all_indices.push_back(at::empty({indices.size(0), nnz}, indices.options()));
    std::vector<int64_t> sizes = values.sizes().vec();
    sizes[0] = nnz;
    all_values.push_back(at::empty(sizes, values.options()));
  }

  void finish() const {
    const at::NoGradGuard no_grad;
    at::Tensor sum =
        at::sparse_coo_tensor(at::cat(all_indices, 1), at::cat(all_values, 0), tensor.sizes())
            .coalesce();
    if (average) sum._values().div_(world);
    tensor.copy_(sum);
  }
};

Buffer buffer_of(const at::Tensor& tensor) { return {tensor.mutable_data_ptr(), tensor.nbytes()}; }

}  // namespace

using Group = ProcessGroupHybridcomm;

const Group::Kind Group::kSparse{Collective::kAllGather, c10d::OpType::_ALLREDUCE_SPARSE,
                                 "all_reduce", "hybridcomm:all_reduce_sparse"};

Group::WorkPtr Group::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  Call call = begin(kSparse);
  const at::Tensor& tensor = call.site.only(tensors, "tensors");
  if (!tensor.is_sparse()) {
    call.site.refuse("tensor", "it is not sparse in the COO format; pass tensor.to_sparse_coo()");
  }
  if (!tensor.device().is_cpu()) {
    call.site.refuse("tensor", "sparse tensors are reduced in host memory only; pass tensor.cpu()");
  }
  if (options.reduceOp.op_ != c10d::ReduceOp::SUM && options.reduceOp.op_ != c10d::ReduceOp::AVG) {
    call.site.refuse("op", "sparse tensors are summed or averaged only");
  }
  const at::NoGradGuard no_grad;
  auto state = std::make_shared<SparseCall>();
  state->tensor = tensor;
  const at::Tensor coalesced = tensor.coalesce();
  state->indices = coalesced.indices().contiguous();
  state->values = coalesced.values().contiguous();
  const Elements elements = call.site.check(state->values, "tensor");
  const RedOp op =
      call.site.check_reduction(state->values, "tensor", elements.dtype, options.reduceOp);
  if (op == RedOp::kAvg && !tensor.is_floating_point() && !tensor.is_complex()) {
    call.site.refuse("op", "AVG of sparse integers; use SUM and divide");
  }
  state->average = op == RedOp::kAvg;
  state->world = size_;
  state->rank = rank_;
  state->own_shape = shape_of(coalesced);
  state->shapes.resize(state->own_shape.size() * static_cast<size_t>(size_));

  choose(call, {DType::kInt64, state->own_shape.size()}, RedOp::kSum, std::nullopt,
         options.timeout);
  call.arguments.call_name = "all_reduce";
  const uint64_t part = state->own_shape.size() * sizeof(int64_t);
  call.arguments.inputs = {{state->own_shape.data(), part}};
  call.arguments.outputs = even_parts({state->shapes.data(), part * static_cast<uint64_t>(size_)});

  // Two programs of one kind follow: indices and values travel in one uneven gather of bytes, each
  // rank's two tensors packed one behind the other.
  OperationArguments second = call.arguments;
  second.dtype = DType::kUInt8;
  second.epilogue = nullptr;
  call.arguments.then = [state, second = std::move(second)]() mutable {
    second.outputs.clear();
    uint64_t digest = 0xcbf29ce484222325u, total = 0;
    for (int rank = 0; rank < state->world; ++rank) state->receive_into(state->nnz(rank));
    // One buffer for each rank: [indices | values].
    auto packed = std::make_shared<std::vector<at::Tensor>>();
    for (int rank = 0; rank < state->world; ++rank) {
      const auto index_bytes = static_cast<int64_t>(state->all_indices[rank].nbytes());
      const auto value_bytes = static_cast<int64_t>(state->all_values[rank].nbytes());
      packed->push_back(at::empty({index_bytes + value_bytes}, at::kByte));
      second.outputs.push_back(buffer_of(packed->back()));
      total += second.outputs.back().bytes;
      digest = (digest ^ second.outputs.back().bytes) * 0x100000001b3u;
    }
    at::Tensor& own = (*packed)[static_cast<size_t>(state->rank)];
    auto* bytes = static_cast<std::byte*>(own.mutable_data_ptr());
    const auto copy = [](void* to, const void* from, size_t size) {
      if (size != 0) std::memcpy(to, from, size);
    };
    copy(bytes, state->indices.const_data_ptr(), state->indices.nbytes());
    copy(bytes + state->indices.nbytes(), state->values.const_data_ptr(), state->values.nbytes());
    second.inputs = {buffer_of(own)};
    second.count = total;
    second.splits = digest | 1;
    second.epilogue = [state, packed, copy] {
      for (size_t rank = 0; rank < packed->size(); ++rank) {
        const auto* from = static_cast<const std::byte*>((*packed)[rank].const_data_ptr());
        at::Tensor& indices = state->all_indices[rank];
        at::Tensor& values = state->all_values[rank];
        copy(indices.mutable_data_ptr(), from, indices.nbytes());
        copy(values.mutable_data_ptr(), from + indices.nbytes(), values.nbytes());
      }
      state->finish();
    };
    return std::move(second);
  };
  call.inputs = call.outputs = {tensor};
  return start(std::move(call), options.asyncOp);
}

}  // namespace hybridcomm
