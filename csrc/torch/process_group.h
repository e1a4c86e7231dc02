// The process group: torch.distributed's calls on the ranks of one group.
#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "engine/communicator.h"
#include "torch/choice.h"
#include "torch/work.h"

namespace hybridcomm {

class ProcessGroupHybridcomm : public c10d::Backend {
 public:
  static constexpr const char* kName = "hybridcomm";

  // What torch reads and sets on every group, and what the user fixed.
  struct Options : c10d::Backend::Options {
    Options() : c10d::Backend::Options(kName) {}
    Preferences preferences;
  };

  // Nothing is sent, and no memory or thread is taken, before the first operation. Throws if an
  // option is wrong.
  ProcessGroupHybridcomm(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                         c10::intrusive_ptr<Options> options);
  // Leaves the group; what is still pending on this rank fails.
  ~ProcessGroupHybridcomm() override;

  const std::string getBackendName() const override { return kName; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;

  void setTimeout(std::chrono::milliseconds timeout) override;
  // Operations are numbered from 1 on every rank, so there is nothing to agree on.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return communicator_->sequence(); }
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

  const Options& options() const { return *options_; }
  const shm::Shape& shape() const { return communicator_->options().shape; }

 private:
  // What is the same for every operation of one kind.
  struct Kind {
    Collective collective;
    c10d::OpType type;
    const char* title;  // for the profiler
  };
  static const Kind kAllReduce, kBroadcast, kAllGather, kAllGatherBase, kBarrier;

  CallSite call_site(const Kind& kind) const;
  // Adds the input to a gathering whose outputs are there already.
  void gather_from(const at::Tensor& input, OperationArguments& call, Operands& operands) const;
  OperationArguments arguments(const Kind& kind, Elements elements, RedOp op,
                               std::optional<uint32_t> root, std::chrono::milliseconds timeout);
  // Work to return to torch: null if the operation is done, because the caller wanted to wait.
  c10::intrusive_ptr<c10d::Work> start(const Kind& kind, OperationArguments arguments,
                                       Operands operands, const std::vector<at::Tensor>& inputs,
                                       std::vector<at::Tensor> outputs, bool async);

  const c10::intrusive_ptr<Options> options_;
  std::shared_ptr<Communicator> communicator_;
  const std::string& group_;  // its name, for errors
  const int process_id_;
};

}  // namespace hybridcomm
