// One operation as torch sees it.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "engine/communicator.h"
#include "torch/callbacks.h"
#include "torch/tensors.h"

namespace hybridcomm {

// The operation keeps it, and with it the tensors, alive until it is done, for the caller may drop
// it at once. Whichever thread carries the operation out completes it: a waiting caller or the
// progress thread.
class WorkHybridcomm : public c10d::Work {
 public:
  // `title` is the profiler's name for it; it must outlive the work.
  WorkHybridcomm(std::shared_ptr<Communicator> communicator, c10d::OpType type, const char* title,
                 const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs,
                 Operands operands);

  // Queues the operation. Throws what is wrong with it; then nothing is queued.
  void submit(OperationArguments arguments);
  // Carries it out on this thread. Throws if it fails.
  void run(OperationArguments arguments);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  // Helps to carry the operation out. If `timeout` passes first it throws, and the operation goes
  // on; zero waits as long as the operation's own time-out lets it.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override {}
  // Ends the whole group: its ranks agree on every operation.
  void abort() override;
  std::vector<at::Tensor> result() override;
  // Completes with the list of output tensors. Its callbacks may start collectives and wait for
  // them.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override;

 private:
  void set_off(OperationArguments& arguments);
  static void finish(c10::intrusive_ptr<WorkHybridcomm> given, const ErrorInfo* error);
  // Completes the future.
  void settle(const ErrorInfo* error);

  const std::shared_ptr<Communicator> communicator_;
  const std::vector<at::Tensor> outputs_;
  Operands operands_;
  const uint64_t parent_ = current_callback();
  std::shared_ptr<Operation> operation_;  // set by submit()

  // Guarded by mutex_ of the base class.
  bool finished_ = false;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // once somebody asks for it
};

}  // namespace hybridcomm
