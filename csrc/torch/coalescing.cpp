// Several operations as one work: coalesced forms and the coalescing manager.
//
// Each tensor is an operation of its own; what is saved is the waiting in between. Operations of
// one group run in order, so nothing more is needed for them to agree on all ranks.
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "torch/process_group.h"

namespace hybridcomm {
namespace {

using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

class CoalescedWork : public c10d::Work {
 public:
  // `title` for the profiler, null if each operation has its own.
  CoalescedWork(Works works, const char* title, const std::vector<at::Tensor>& inputs)
      : Work(-1, c10d::OpType::COALESCED, at::hasCallbacks() ? title : nullptr,
             at::hasCallbacks() ? std::optional(inputs) : std::nullopt),
        works_(std::move(works)) {}

  bool isCompleted() override {
    return std::all_of(works_.begin(), works_.end(),
                       [](const auto& work) { return work->isCompleted(); });
  }

  bool isSuccess() const override {
    return std::all_of(works_.begin(), works_.end(),
                       [](const auto& work) { return work->isSuccess(); });
  }

  std::exception_ptr exception() const override {
    for (const auto& work : works_) {
      if (std::exception_ptr thrown = work->exception()) return thrown;
    }
    return nullptr;
  }

  // `timeout` is for each of them.
  bool wait(std::chrono::milliseconds timeout) override {
    for (const auto& work : works_) work->wait(timeout);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (recordFunctionEndCallback_) std::exchange(recordFunctionEndCallback_, nullptr)();
    return true;
  }

  void synchronize() override {}

  void abort() override {
    if (!works_.empty()) works_.front()->abort();
  }

  std::vector<at::Tensor> result() override {
    std::vector<at::Tensor> all;
    for (const auto& work : works_) {
      for (at::Tensor& tensor : work->result()) all.push_back(std::move(tensor));
    }
    return all;
  }

  // Completes with the outputs of all.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const c10::TypePtr type = c10::ListType::create(c10::TensorType::get());
    c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(c10::FutureType::create(type));
    for (const auto& work : works_) futures.push_back(work->getFuture());
    return c10::collectAll(futures)->then(
        [self = c10::intrusive_ptr<CoalescedWork>::reclaim_copy(this)](
            c10::ivalue::Future& all) -> c10::IValue {
          if (all.hasError()) std::rethrow_exception(all.exception_ptr());
          return self->result();
        },
        type);
  }

  // They run one after the other.
  float getDuration() const override {
    float sum = 0;
    for (const auto& work : works_) sum += work->getDuration();
    return sum;
  }

  uint64_t getSequencenumber() const override {
    return works_.empty() ? 0 : works_.back()->getSequencenumber();
  }

 private:
  const Works works_;
};

void require_pairs(const CallSite& site, size_t outputs, size_t inputs) {
  if (outputs == inputs) return;
  site.refuse("outputs", std::to_string(outputs) + " given for " + std::to_string(inputs) +
                             " inputs; there must be one for each");
}

}  // namespace

using Group = ProcessGroupHybridcomm;

const Group::Batch* Group::batch() const {
  const std::lock_guard<std::mutex> lock(batch_mutex_);
  const auto found = batches_.find(std::this_thread::get_id());
  return found != batches_.end() ? &found->second : nullptr;
}

void Group::add_to_batch(WorkPtr work) {
  const std::lock_guard<std::mutex> lock(batch_mutex_);
  batches_.at(std::this_thread::get_id()).works.push_back(std::move(work));
}

void Group::begin_batch(bool one_title) {
  const std::lock_guard<std::mutex> lock(batch_mutex_);
  batches_.try_emplace(std::this_thread::get_id()).first->second.one_title = one_title;
}

std::vector<Group::WorkPtr> Group::end_batch() {
  const std::lock_guard<std::mutex> lock(batch_mutex_);
  return std::move(batches_.extract(std::this_thread::get_id()).mapped().works);
}

void Group::startCoalescing() {
  if (batch() != nullptr) {
    CallSite("start_coalescing", rank_, group_)
        .refuse("group", "this thread has begun a batch already; end that one first");
  }
  begin_batch(/*one_title=*/false);
}

Group::WorkPtr Group::endCoalescing() {
  if (batch() == nullptr) {
    CallSite("end_coalescing", rank_, group_).refuse("group", "this thread has begun no batch");
  }
  return c10::make_intrusive<CoalescedWork>(end_batch(), nullptr, Tensors{});
}

Group::WorkPtr Group::start_all(const Kind& kind, const Tensors& inputs, bool async,
                                const std::function<void(size_t)>& start_one) {
  if (batch() != nullptr) {
    // Within the caller's own batch, to which each operation adds itself.
    for (size_t i = 0; i < inputs.size(); ++i) start_one(i);
    return nullptr;
  }
  begin_batch(/*one_title=*/true);
  try {
    for (size_t i = 0; i < inputs.size(); ++i) start_one(i);
  } catch (...) {
    end_batch();
    throw;
  }
  auto work = c10::make_intrusive<CoalescedWork>(end_batch(), kind.title, inputs);
  if (async) return work;
  work->wait(kNoTimeout);
  return nullptr;
}

Group::WorkPtr Group::allreduce_coalesced(Tensors& tensors,
                                          const c10d::AllreduceCoalescedOptions& options) {
  return start_all(kAllReduce, tensors, options.asyncOp, [&](size_t i) {
    Tensors one{tensors[i]};
    allreduce(one, options);
  });
}

Group::WorkPtr Group::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) {
  const CallSite site("all_gather_coalesced", rank_, group_);
  if (outputs.size() != static_cast<size_t>(size_)) {
    site.refuse("output_tensor_lists", std::to_string(outputs.size()) + " lists given, but " +
                                           std::to_string(size_) +
                                           " are needed, one for each rank");
  }
  for (const Tensors& list : outputs) require_pairs(site, list.size(), inputs.size());
  return start_all(kAllGather, inputs, options.asyncOp, [&](size_t i) {
    std::vector<Tensors> to(1);
    for (const Tensors& list : outputs) to[0].push_back(list[i]);
    Tensors from{inputs[i]};
    allgather(to, from, options);
  });
}

Group::WorkPtr Group::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& options) {
  require_pairs(CallSite("all_gather_into_tensor_coalesced", rank_, group_), outputs.size(),
                inputs.size());
  return start_all(kAllGatherTensor, inputs, options.asyncOp,
                   [&](size_t i) { _allgather_base(outputs[i], inputs[i], options); });
}

Group::WorkPtr Group::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                      const c10d::ReduceScatterOptions& options) {
  require_pairs(CallSite("reduce_scatter_tensor_coalesced", rank_, group_), outputs.size(),
                inputs.size());
  return start_all(kReduceScatterTensor, inputs, options.asyncOp,
                   [&](size_t i) { _reduce_scatter_base(outputs[i], inputs[i], options); });
}

}  // namespace hybridcomm
