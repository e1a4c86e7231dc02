// Starting, waiting for and completing one operation.
#include "torch/work.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <optional>
#include <utility>

#include "torch/recording.h"

namespace hybridcomm {

WorkHybridcomm::WorkHybridcomm(std::shared_ptr<Service> service,
                               std::shared_ptr<Observers> observers, c10d::OpType type,
                               const char* title, const std::vector<at::Tensor>& inputs,
                               std::vector<at::Tensor> outputs, Operands operands)
    // The title starts a record for the profiler; without one listening that is wasted time.
    : Work(-1, type, at::hasCallbacks() ? title : nullptr,
           at::hasCallbacks() ? std::optional(inputs) : std::nullopt),
      service_(std::move(service)),
      pending_(std::move(observers)),
      timed_(pending_.observers()->timed()),
      outputs_(std::move(outputs)),
      operands_(std::move(operands)) {}

// ---- starting -----------------------------------------------------------------------------------

void WorkHybridcomm::set_off(Completion& completion) {
  if (operands_.must_copy_back()) completion.epilogue = [this] { operands_.copy_back(); };
  // The one reference by which the operation keeps its work.
  completion.on_complete = [self = c10::intrusive_ptr<WorkHybridcomm>::reclaim_copy(this)](
                               const Operation& operation) mutable {
    finish(std::move(self), operation);
  };
}

// ---- completing ---------------------------------------------------------------------------------

void WorkHybridcomm::finish(c10::intrusive_ptr<WorkHybridcomm> given, const Operation& operation) {
  const Completing completing;
  const ErrorInfo* const error = operation.error();
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
  if (error != nullptr) {
    const Identity& identity = self->service_->identity();
    dump_after(error->kind, identity.global_rank(identity.rank));
  } else if (self->pending_.observers()->has_hook()) {
    run_callback(self->service_.get(), self->parent_,
                 [due = self->pending_, type = self->opType_, sequence = operation.sequence(),
                  started = operation.started_at(), finished = operation.finished_at()] {
                   due.observers()->call_hook(type, sequence, started, finished);
                 });
  }
  if (has_future) {
    run_callback(self->service_.get(), self->parent_,
                 [self, error = error != nullptr ? std::optional(*error) : std::nullopt] {
                   self->settle(error ? &*error : nullptr);
                 });
  }
  self->pending_.release();
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

c10::intrusive_ptr<c10::ivalue::Future> WorkHybridcomm::getFutureResult() {
  return getFuture()->then(
      [operation = operation_](c10::ivalue::Future&) {
        auto result = c10d::WorkResult::SUCCESS;
        if (const ErrorInfo* const error = operation->error()) {
          result = error->kind == ErrorKind::kTimeout ? c10d::WorkResult::TIMEOUT
                                                      : c10d::WorkResult::COMM_ERROR;
        }
        return c10::IValue(static_cast<int64_t>(result));
      },
      c10::IntType::get());
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

float WorkHybridcomm::getDuration() const {
  TORCH_CHECK(timed_, "get_duration only works for work that begins after timing was enabled");
  TORCH_CHECK(operation_->done(), "get_duration only works once the work is done");
  TORCH_CHECK(operation_->error() == nullptr, "get_duration only works for work that succeeded");
  return std::chrono::duration<float, std::milli>(operation_->finished_at() -
                                                  operation_->started_at())
      .count();
}

uint64_t WorkHybridcomm::getSequencenumber() const { return operation_->sequence(); }

}  // namespace hybridcomm
