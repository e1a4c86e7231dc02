// The tensors of one call: checked before anything is queued, and laid out as the core takes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "engine/collective.h"

namespace hybridcomm {

// What a tensor is made of for the core.
struct Elements {
  DType dtype;
  uint64_t count;
};

// Who called what: the beginning of every complaint about an argument, and the checks that make
// them. They raise Python's ValueError.
class CallSite {
 public:
  CallSite(const char* operation, int rank, const std::string& group)
      : operation_(operation), rank_(rank), group_(group) {}

  [[noreturn]] void refuse(const std::string& argument, const std::string& why) const;

  // The only element; the list forms of torch's interface once meant one tensor per device.
  template <class T>
  T& only(std::vector<T>& list, const char* argument) const {
    if (list.size() != 1) {
      refuse(argument, std::to_string(list.size()) + " given; this backend takes exactly one");
    }
    return list.front();
  }

  // That it is a plain tensor in host memory. A dtype that has no code of its own is moved as
  // bytes.
  Elements check(const at::Tensor& tensor, const std::string& argument) const;
  // The same, and that no two of its elements share memory.
  Elements check_output(const at::Tensor& tensor, const std::string& argument) const;
  // That `op` is defined for the tensor's dtype.
  RedOp check_reduction(const at::Tensor& tensor, const std::string& argument, DType dtype,
                        const c10d::ReduceOp& op) const;
  // That it has the model's dtype.
  void check_dtype(const at::Tensor& tensor, const std::string& argument, const at::Tensor& model,
                   const std::string& model_argument) const;
  // That an output has `needed` elements of the model's dtype.
  void check_match(const at::Tensor& tensor, const std::string& argument, int64_t needed,
                   const at::Tensor& model, const std::string& model_argument) const;

 private:
  const char* operation_;
  int rank_;
  const std::string& group_;
};

// The memory that an operation reads and writes. A contiguous tensor is used where it lies; of any
// other the operation gets a contiguous copy in logical order, copied back when it is done.
class Operands {
 public:
  Buffer read(const at::Tensor& tensor);
  Buffer write(const at::Tensor& tensor);
  Buffer update(const at::Tensor& tensor);
  // A copy of what the buffer holds now.
  Buffer copy(const Buffer& buffer);
  // A place apart for the result, which is copied into the tensor when the operation is done.
  Buffer write_apart(const at::Tensor& tensor);
  // A copy of the tensor times PREMUL_SUM's factor, rounded to the tensor's dtype.
  Buffer scaled(const at::Tensor& tensor, const c10d::PreMulSumSupplement& factor);

  bool must_copy_back() const { return !copies_.empty(); }
  void copy_back() const;

 private:
  Buffer stage(const at::Tensor& tensor, bool load, bool store, bool apart = false);
  Buffer hold(at::Tensor memory);

  std::vector<at::Tensor> held_;
  // A tensor that is held may be given other storage (set_, .data) while we use this one.
  std::vector<c10::Storage> storages_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // (where to, from where)
};

// Two of the tensors, of one dtype, that have memory in common: their indices, ascending. What lies
// between the elements of a strided tensor may belong to another one.
std::optional<std::pair<size_t, size_t>> find_shared_elements(
    const std::vector<at::Tensor>& tensors);

// True if they have a byte in common.
bool overlap(const Buffer& a, const Buffer& b);

}  // namespace hybridcomm
