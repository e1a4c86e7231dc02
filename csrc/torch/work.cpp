// Starting, waiting for and completing one operation.
#include "torch/work.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <optional>
#include <utility>

#include "torch/callbacks.h"
#include "torch/errors.h"
#include "torch/exit.h"
#include "torch/interpreter.h"

namespace hybridcomm {
namespace {

// Runs `wait`; what it throws leaves this function as Python's exception.
template <class Wait>
void waiting(Wait&& wait) {
  try {
    wait();
  } catch (const CommError& error) {
    stay_if_leaving();
    std::rethrow_exception(to_exception(error.info()));
  }
}

}  // namespace

WorkHybridcomm::WorkHybridcomm(std::shared_ptr<Communicator> communicator, c10d::OpType type,
                               const char* title, const std::vector<at::Tensor>& inputs,
                               std::vector<at::Tensor> outputs, Operands operands)
    // The title starts a record for the profiler; without one listening that is wasted time.
    : Work(-1, type, at::hasCallbacks() ? title : nullptr,
           at::hasCallbacks() ? std::optional(inputs) : std::nullopt),
      communicator_(std::move(communicator)),
      outputs_(std::move(outputs)),
      operands_(std::move(operands)) {}

// ---- starting -----------------------------------------------------------------------------------

void WorkHybridcomm::set_off(OperationArguments& arguments) {
  if (operands_.must_copy_back()) arguments.epilogue = [this] { operands_.copy_back(); };
  // The one reference by which the operation keeps its work.
  arguments.on_complete = [self = c10::intrusive_ptr<WorkHybridcomm>::reclaim_copy(this)](
                              const ErrorInfo* error) mutable { finish(std::move(self), error); };
}

void WorkHybridcomm::submit(OperationArguments arguments) {
  set_off(arguments);
  operation_ = translating([&] { return communicator_->submit(std::move(arguments)); });
}

void WorkHybridcomm::run(OperationArguments arguments) {
  const ReleaseGil released;
  set_off(arguments);
  waiting([&] { communicator_->run(std::move(arguments)); });
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
    run_callback(self->communicator_.get(), self->parent_,
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
  waiting([&] { communicator_->wait(operation_, timeout); });
  return true;
}

void WorkHybridcomm::abort() {
  const ReleaseGil released;
  communicator_->abort("Work.abort() was called");
}

std::vector<at::Tensor> WorkHybridcomm::result() { return outputs_; }

uint64_t WorkHybridcomm::getSequencenumber() const { return operation_->sequence(); }

}  // namespace hybridcomm
