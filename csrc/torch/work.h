// One operation as torch sees it.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "engine/service.h"
#include "torch/callbacks.h"
#include "torch/errors.h"
#include "torch/exit.h"
#include "torch/hooks.h"
#include "torch/interpreter.h"
#include "torch/tensors.h"

namespace hybridcomm {

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

// The operation keeps it, and with it the tensors, alive until it is done, for the caller may drop
// it at once. Whichever thread carries the operation out completes it: a waiting caller or the
// progress thread.
class WorkHybridcomm : public c10d::Work {
 public:
  // `service` will carry the operation out. `title` is the profiler's name for it; it must outlive
  // the work.
  WorkHybridcomm(std::shared_ptr<Service> service, std::shared_ptr<Observers> observers,
                 c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
                 std::vector<at::Tensor> outputs, Operands operands);

  // Queues the operation with `carrier`, which is the service. Throws what is wrong with it; then
  // nothing is queued.
  template <class Carrier, class Arguments>
  void submit(Carrier& carrier, Arguments arguments) {
    set_off(arguments);
    operation_ = translating([&] { return carrier.submit(std::move(arguments)); });
  }
  // Carries it out on this thread. Throws if it fails.
  template <class Carrier, class Arguments>
  void run(Carrier& carrier, Arguments arguments) {
    const ReleaseGil released;
    set_off(arguments);
    waiting([&] { carrier.run(std::move(arguments)); });
  }

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  // Helps to carry the operation out. If `timeout` passes first it throws, and the operation goes
  // on; zero waits as long as the operation's own time-out lets it.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override {}
  // The calling thread is the stream of tensors in host memory.
  void blockCurrentStream() override { wait(kNoTimeout); }
  // Ends the whole group: its ranks agree on every operation.
  void abort() override;
  std::vector<at::Tensor> result() override;
  // Completes with the list of output tensors. Its callbacks may start collectives and wait for
  // them.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  // Completes with the WorkResult, as an integer; never with an error.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  // Milliseconds from the first step, when all ranks had called, to the last. Throws if timing was
  // not enabled when the work began, or if it is not done or has failed.
  float getDuration() const override;
  uint64_t getSequencenumber() const override;

 protected:
  const std::shared_ptr<Operation>& operation() const { return operation_; }

 private:
  void set_off(Completion& completion);
  static void finish(c10::intrusive_ptr<WorkHybridcomm> given, const Operation& operation);
  // Completes the future.
  void settle(const ErrorInfo* error);

  const std::shared_ptr<Service> service_;
  Pending pending_;
  const bool timed_;
  const std::vector<at::Tensor> outputs_;
  Operands operands_;
  const uint64_t parent_ = current_callback();
  std::shared_ptr<Operation> operation_;  // set by submit()

  // Guarded by mutex_ of the base class.
  bool finished_ = false;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // once somebody asks for it
};

}  // namespace hybridcomm
