// Checks and copies of tensors.
#include "torch/tensors.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <sstream>

#include "base/reduce.h"

namespace hybridcomm {
namespace {

std::optional<DType> code_of(at::ScalarType type) {
  switch (type) {
    case at::kBool: return DType::kBool;
    case at::kByte: return DType::kUInt8;
    case at::kChar: return DType::kInt8;
    case at::kUInt16: return DType::kUInt16;
    case at::kShort: return DType::kInt16;
    case at::kUInt32: return DType::kUInt32;
    case at::kInt: return DType::kInt32;
    case at::kUInt64: return DType::kUInt64;
    case at::kLong: return DType::kInt64;
    case at::kHalf: return DType::kFloat16;
    case at::kBFloat16: return DType::kBFloat16;
    case at::kFloat: return DType::kFloat32;
    case at::kDouble: return DType::kFloat64;
    case at::kComplexFloat: return DType::kComplex64;
    case at::kComplexDouble: return DType::kComplex128;
    case at::kComplexHalf: return DType::kComplex32;
    case at::kFloat8_e4m3fn: return DType::kFloat8E4M3fn;
    case at::kFloat8_e5m2: return DType::kFloat8E5M2;
    case at::kFloat8_e4m3fnuz: return DType::kFloat8E4M3fnuz;
    case at::kFloat8_e5m2fnuz: return DType::kFloat8E5M2fnuz;
    default: return std::nullopt;
  }
}

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

std::string name_of(at::ScalarType type) {
  const std::optional<DType> dtype = code_of(type);
  return dtype ? dtype_name(*dtype) : c10::toString(type);
}

std::string describe(const at::Tensor& tensor) {
  return text(tensor.numel(), " elements of ", name_of(tensor.scalar_type()));
}

// True if two elements may share an address: unless each dimension, in the order of strides, steps
// over all that the smaller ones span.
bool elements_overlap(const at::Tensor& tensor) {
  if (tensor.numel() < 2) return false;
  std::vector<std::pair<int64_t, int64_t>> dimensions;  // (stride, size)
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1) dimensions.emplace_back(tensor.stride(i), tensor.size(i));
  }
  std::sort(dimensions.begin(), dimensions.end());
  int64_t span = 0;
  for (const auto& [stride, size] : dimensions) {
    if (stride <= span) return true;
    span += stride * (size - 1);
  }
  return false;
}

// Conjugate and negative views hold other numbers than their memory does.
bool lies_as_used(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

}  // namespace

// ---- checks -------------------------------------------------------------------------------------

void CallSite::refuse(const std::string& argument, const std::string& why) const {
  C10_THROW_ERROR(ValueError, text(operation_, " on rank ", rank_, " of group '", group_,
                                   "': argument ", argument, ": ", why));
}

Elements CallSite::check(const at::Tensor& tensor, const std::string& argument) const {
  if (!tensor.defined()) refuse(argument, "it is no tensor");
  if (!tensor.device().is_cpu()) {
    refuse(argument,
           text("it is on ", tensor.device(),
                ", and this version moves tensors in host memory "
                "only: pass tensor.cpu(), or give other devices a backend of their own, as in "
                "init_process_group('cpu:hybridcomm,cuda:nccl')"));
  }
  if (tensor.layout() != at::kStrided) {
    refuse(argument,
           "it is sparse or laid out otherwise than by strides; pass a dense tensor, for "
           "instance tensor.to_dense()");
  }
  if (tensor.is_nested()) refuse(argument, "it is a nested tensor; pass its dense values");
  if (!tensor.has_storage()) {
    refuse(argument, "it has no memory of its own (a fake or wrapped tensor)");
  }
  // FSDP, for one, frees storage under tensors that live on.
  if (at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                       tensor.storage_offset()) > tensor.storage().nbytes() &&
      tensor.numel() != 0) {
    refuse(argument, text("its storage has ", tensor.storage().nbytes(), " bytes, too few for its ",
                          describe(tensor), ": it has been freed or resized"));
  }
  const std::optional<DType> dtype = code_of(tensor.scalar_type());
  if (dtype) return {*dtype, static_cast<uint64_t>(tensor.numel())};
  if (tensor.is_quantized()) {
    refuse(argument, text("its dtype is ", name_of(tensor.scalar_type()),
                          ", which means nothing without its scale; pass tensor.int_repr()"));
  }
  return {DType::kUInt8, static_cast<uint64_t>(tensor.nbytes())};
}

Elements CallSite::check_output(const at::Tensor& tensor, const std::string& argument) const {
  const Elements elements = check(tensor, argument);
  if (!tensor.is_contiguous() && elements_overlap(tensor)) {
    refuse(argument, text("some of its elements share memory (sizes ", tensor.sizes(), ", strides ",
                          tensor.strides(),
                          "), so there is no room for the result; pass tensor.contiguous()"));
  }
  return elements;
}

RedOp CallSite::check_reduction(const at::Tensor& tensor, const std::string& argument, DType dtype,
                                const c10d::ReduceOp& op) const {
  if (op.op_ >= c10d::ReduceOp::UNUSED) {
    refuse("op", text("there is no reduction with number ", static_cast<int>(op.op_)));
  }
  const auto redop = static_cast<RedOp>(op.op_);
  if (!code_of(tensor.scalar_type())) {
    refuse(argument, text(name_of(tensor.scalar_type()), " is moved, never reduced"));
  }
  if (redop == RedOp::kPremulSum && !tensor.is_floating_point() && !tensor.is_complex()) {
    refuse("op", text("PREMUL_SUM of ", dtype_name(dtype),
                      ": a factor would be cut to a whole number; use SUM"));
  }
  // PREMUL_SUM is the sum of tensors that were multiplied before.
  const RedOp reduction = redop == RedOp::kPremulSum ? RedOp::kSum : redop;
  if (const char* why = reduce_refusal(dtype, reduction)) {
    refuse("op", text(redop_name(redop), " of ", dtype_name(dtype), ": ", why));
  }
  return redop;
}

void CallSite::check_dtype(const at::Tensor& tensor, const std::string& argument,
                           const at::Tensor& model, const std::string& model_argument) const {
  if (tensor.scalar_type() == model.scalar_type()) return;
  refuse(argument, text("it has ", describe(tensor), ", but ", model_argument, " has ",
                        describe(model), "; they must have one dtype"));
}

void CallSite::check_match(const at::Tensor& tensor, const std::string& argument, int64_t needed,
                           const at::Tensor& model, const std::string& model_argument) const {
  check_dtype(tensor, argument, model, model_argument);
  if (tensor.numel() != needed) {
    refuse(argument, text("it has ", describe(tensor), ", but ", needed, " are needed, because ",
                          model_argument, " has ", describe(model)));
  }
}

// ---- layout -------------------------------------------------------------------------------------

Buffer Operands::hold(at::Tensor memory) {
  const Buffer buffer{memory.mutable_data_ptr(), memory.nbytes()};
  held_.push_back(std::move(memory));
  return buffer;
}

Buffer Operands::stage(const at::Tensor& tensor, bool load, bool store, bool apart) {
  if (lies_as_used(tensor) && !apart) {
    held_.push_back(tensor);
    storages_.push_back(tensor.storage());
    void* const data =
        store ? tensor.mutable_data_ptr() : const_cast<void*>(tensor.const_data_ptr());
    return {data, tensor.nbytes()};
  }
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_views;
  at::Tensor staged = at::empty(tensor.sizes(), tensor.options());
  if (load) staged.copy_(tensor);
  if (store) copies_.emplace_back(tensor, staged);
  return hold(std::move(staged));
}

Buffer Operands::read(const at::Tensor& tensor) { return stage(tensor, true, false); }
Buffer Operands::write(const at::Tensor& tensor) { return stage(tensor, false, true); }
Buffer Operands::update(const at::Tensor& tensor) { return stage(tensor, true, true); }

Buffer Operands::write_apart(const at::Tensor& tensor) {
  return stage(tensor, false, true, /*apart=*/true);
}

Buffer Operands::copy(const Buffer& buffer) {
  const Buffer result = hold(at::empty({static_cast<int64_t>(buffer.bytes)}, at::kByte));
  if (buffer.bytes != 0) std::memcpy(result.data, buffer.data, buffer.bytes);
  return result;
}

Buffer Operands::scaled(const at::Tensor& tensor, const c10d::PreMulSumSupplement& factor) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_views;
  at::Tensor product = at::empty(tensor.sizes(), tensor.options());
  // Through float: torch multiplies no float8.
  const at::ScalarType wide = tensor.itemsize() == 1 ? at::kFloat : tensor.scalar_type();
  const at::Scalar number = factor.tensor_factor.defined() ? factor.tensor_factor.item()
                                                           : at::Scalar(factor.double_factor);
  product.copy_(tensor.to(wide).mul(number));
  return hold(std::move(product));
}

void Operands::copy_back() const {
  // This may be another thread than the caller's, and its settings are not the caller's.
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_views;
  for (const auto& [to, from] : copies_) to.copy_(from);
}

namespace {

struct Extent {
  const char* begin;
  const char* end;
  size_t index;
};

// The elements of all tensors by address, sorted, to find two at one. Only for strided tensors
// whose extents overlap: columns of one matrix, for instance.
std::optional<std::pair<size_t, size_t>> compare_addresses(const std::vector<at::Tensor>& tensors,
                                                           const std::vector<Extent>& extents) {
  const char* const base = extents.front().begin;
  std::vector<at::Tensor> addresses;
  std::vector<int64_t> owner_ends;
  int64_t total = 0;
  for (const Extent& extent : extents) {
    const at::Tensor& tensor = tensors[extent.index];
    const int64_t length = (extent.end - extent.begin) / tensor.itemsize();
    const at::Tensor places = at::arange(length, at::kLong);
    addresses.push_back(places.as_strided(tensor.sizes(), tensor.strides()).reshape(-1) *
                            tensor.itemsize() +
                        (extent.begin - base));
    total += tensor.numel();
    owner_ends.push_back(total);
  }
  const auto [sorted, from] = at::sort(at::cat(addresses));
  const int64_t size = tensors[extents.front().index].itemsize();
  const at::Tensor close = at::diff(sorted).lt(size).nonzero();
  if (close.numel() == 0) return std::nullopt;
  const int64_t at = close[0][0].item<int64_t>();
  const auto owner = [&](int64_t position) {
    const int64_t element = from[position].item<int64_t>();
    const auto end = std::upper_bound(owner_ends.begin(), owner_ends.end(), element);
    return extents[static_cast<size_t>(end - owner_ends.begin())].index;
  };
  return std::minmax(owner(at), owner(at + 1));
}

}  // namespace

std::optional<std::pair<size_t, size_t>> find_shared_elements(
    const std::vector<at::Tensor>& tensors) {
  std::vector<Extent> extents;
  bool strided = false;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    if (tensor.numel() == 0) continue;
    const auto* const begin = static_cast<const char*>(tensor.const_data_ptr());
    const size_t bytes =
        at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
    extents.push_back({begin, begin + bytes, i});
    strided = strided || !tensor.is_contiguous();
  }
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  const char* end = nullptr;
  size_t owner = 0;
  for (const Extent& extent : extents) {
    if (end != nullptr && extent.begin < end) {
      if (strided) return compare_addresses(tensors, extents);
      return std::minmax(owner, extent.index);
    }
    end = extent.end;
    owner = extent.index;
  }
  return std::nullopt;
}

bool overlap(const Buffer& a, const Buffer& b) {
  const auto begin = [](const Buffer& buffer) {
    return static_cast<const std::byte*>(buffer.data);
  };
  return a.bytes != 0 && b.bytes != 0 && begin(a) < begin(b) + b.bytes &&
         begin(b) < begin(a) + a.bytes;
}

}  // namespace hybridcomm
