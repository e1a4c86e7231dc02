// Starting, waiting for and completing one operation.
#include "torch/work.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <optional>
#include <utility>

namespace hybridcomm {

WorkHybridcomm::WorkHybridcomm(std::shared_ptr<Service> service, c10d::OpType type,
                               const char* title, const std::vector<at::Tensor>& inputs,
                               std::vector<at::Tensor> outputs, Operands operands)
    // The title starts a record for the profiler; without one listening that is wasted time.
    : Work(-1, type, at::hasCallbacks() ? title : nullptr,
           at::hasCallbacks() ? std::optional(inputs) : std::nullopt),
      service_(std::move(service)),
      outputs_(std::move(outputs)),
      operands_(std::move(operands)) {}

// ---- starting -----------------------------------------------------------------------------------

void WorkHybridcomm::set_off(Completion& completion) {
  if (operands_.must_copy_back()) completion.epilogue = [this] { operands_.copy_back(); };
  // The one reference by which the operation keeps its work.
  completion.on_complete = [self = c10::intrusive_ptr<WorkHybridcomm>::reclaim_copy(this)](
                               const ErrorInfo* error) mutable { finish(std::move(self), error); };
}

// ---- completing ---------------------------------------------------------------------------------

void WorkHybridcomm::finish(c10::intrusive_ptr<WorkHybridcomm> given, const ErrorInfo* error) {
  const Completing completing;
  // Declared after the above, so what they keep alive is released before it ends.
  const c10::intrusive_ptr<WorkHybridcomm> self = std::move(given);
  const Operands operands = std::move(self->operands_);
  bool has_future;
  {
    const std::lock_guard<std::mutex> lock(self->mutex_);
    self->finished_ = true;
    has_future = self->future_.defined();
  }
  if (self->recordFunctionEndCallback_) {
    self->recordFunctionEndCallback_();
    self->recordFunctionEndCallback_ = nullptr;
  }
  if (has_future) {
    run_callback(self->service_.get(), self->parent_,
                 [self, error = error != nullptr ? std::optional(*error) : std::nullopt] {
                   self->settle(error ? &*error : nullptr);
                 });
  }
}

void WorkHybridcomm::settle(const ErrorInfo* error) {
  try {
    if (error != nullptr) {
      future_->setError(to_exception(*error));
    } else {
      future_->markCompleted(c10::IValue(outputs_));
    }
  } catch (const std::exception& thrown) {
    TORCH_WARN("hybridcomm: a callback of a collective's future threw: ", thrown.what());
  }
}

c10::intrusive_ptr<c10::ivalue::Future> WorkHybridcomm::getFuture() {
  bool settled;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (future_) return future_;
    future_ =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    settled = finished_;
  }
  // Not under the lock, because an error takes the interpreter's. A callback that another thread
  // adds meanwhile runs here.
  if (settled) settle(operation_->error());
  return future_;
}

// ---- waiting ------------------------------------------------------------------------------------

bool WorkHybridcomm::isCompleted() { return operation_->done(); }

bool WorkHybridcomm::isSuccess() const {
  return operation_->done() && operation_->error() == nullptr;
}

std::exception_ptr WorkHybridcomm::exception() const {
  const ErrorInfo* const error = operation_->error();
  return error != nullptr ? to_exception(*error) : nullptr;
}

bool WorkHybridcomm::wait(std::chrono::milliseconds timeout) {
  const ReleaseGil released;
  waiting([&] { service_->wait(operation_, timeout); });
  return true;
}

void WorkHybridcomm::abort() {
  const ReleaseGil released;
  service_->abort("Work.abort() was called");
}

std::vector<at::Tensor> WorkHybridcomm::result() { return outputs_; }

uint64_t WorkHybridcomm::getSequencenumber() const { return operation_->sequence(); }

}  // namespace hybridcomm
