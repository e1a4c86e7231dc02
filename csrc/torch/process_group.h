// The process group: torch.distributed's calls on the ranks of one group.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unordered_map>
#include <vector>

#include "engine/communicator.h"
#include "engine/messenger.h"
#include "torch/choice.h"
#include "torch/profiling.h"
#include "torch/work.h"

namespace hybridcomm {

// Longer ones would overflow the clock, which counts nanoseconds.
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 365 * 100);

class ProcessGroupHybridcomm : public c10d::Backend {
 public:
  static constexpr const char* kName = "hybridcomm";

  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // What torch reads and sets on every group, and what the user fixed.
  //
  // torch's DDP takes any group that it knows as "gloo" for Gloo's own class, and logs the threads
  // that it finds in the options of that one [torch 2.13]. So that a group which stands in for Gloo
  // has something there, `threads` lies where Gloo's lies, and so does `options_` below.
  struct Options : c10d::Backend::Options {
    Options() : c10d::Backend::Options(kName) {}
    std::vector<std::shared_ptr<void>> devices;
    int threads = 2;
    Preferences preferences;
  };

  // Nothing is sent, and no memory or thread is taken, before the first operation. Throws if an
  // option is wrong.
  ProcessGroupHybridcomm(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                         c10::intrusive_ptr<Options> options);
  // Leaves the group; what is still pending on this rank fails.
  ~ProcessGroupHybridcomm() override;

  const std::string getBackendName() const override { return kName; }
  // A copy: torch writes the name and time-out of a new group into what it is given.
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override {
    return c10::make_intrusive<Options>(*options_);
  }

  // ---- collectives.cpp
  // ---------------------------------------------------------------------------

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  // ---- sparse.cpp
  // --------------------------------------------------------------------------------

  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;

  // ---- coalescing.cpp
  // ----------------------------------------------------------------------------

  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  // Between the two every call of this thread returns at once, as if it were asynchronous.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  // ---- point_to_point.cpp
  // ------------------------------------------------------------------------

  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // ---- process_group.cpp
  // -------------------------------------------------------------------------

  bool supportsSplitting() const override { return true; }
  bool supportsShrinking() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options,
                                          const int& rank, const int& size) override;
  c10::intrusive_ptr<c10d::Backend> shrink(
      const std::vector<int64_t>& excluded, int flags,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;

  void setTimeout(std::chrono::milliseconds timeout) override;
  // Operations are numbered from 1 on every rank, so there is nothing to agree on.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return communicator_->sequence(); }
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

  // ---- observing.cpp
  // -----------------------------------------------------------------------------

  // Work begun from now on knows how long it took.
  void enableCollectivesTiming() override;
  // `hook` is called after each operation that succeeded, on threads of ours, in the order in which
  // operations are done.
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  void waitForPendingWorks() override;
  std::shared_ptr<c10::Allocator> getMemAllocator() override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  std::unordered_map<std::string, uint64_t> getMemoryStats() override;

  const Options& options() const { return *options_; }
  const shm::Shape& shape() const { return communicator_->options().shape; }

 private:
  // What is the same for every call of one function.
  struct Kind {
    Collective collective;
    c10d::OpType type;
    const char* name;   // the function's, for errors
    const char* title;  // the profiler's
  };
  // One call on its way to becoming an operation.
  struct Call {
    const Kind& kind;
    CallSite site;
    OperationArguments arguments;
    Operands operands;
    Tensors inputs;
    Tensors outputs;
  };
  static const Kind kAllReduce, kBroadcast, kReduce, kAllGather, kAllGatherTensor, kReduceScatter,
      kReduceScatterTensor, kGather, kScatter, kAllToAll, kAllToAllSingle, kBarrier, kSparse;

  Call begin(const Kind& kind) const;
  // Chooses the algorithm and the program; everything else of the arguments but buffers.
  void choose(Call& call, Elements elements, RedOp op, std::optional<uint32_t> root,
              std::chrono::milliseconds timeout) const;
  // Of one call: what it was given, or its preferences; zero if neither, for the group's.
  static std::chrono::milliseconds own_timeout(std::chrono::milliseconds given);
  void check_root(const CallSite& site, const char* argument, int64_t root,
                  int64_t root_tensor) const;
  // That `list` has one tensor for each rank, each of the model's dtype.
  void check_list(const CallSite& site, const Tensors& list, const char* argument,
                  const at::Tensor& model, const char* model_argument, bool outputs) const;
  // Adds the input to a gathering whose outputs are there already.
  void gather_from(Call& call, const at::Tensor& input) const;
  // A place for the output, apart from the inputs that are there already: other ranks may not have
  // read them when it is written.
  Buffer place_output(Call& call, const at::Tensor& output) const;
  // This rank's contribution to a reduction.
  Buffer contribution(Call& call, const at::Tensor& tensor, const c10d::ReduceOp& op) const;
  // The parts of `whole`, in order.
  static std::vector<Buffer> parts(const Buffer& whole, const std::vector<int64_t>& bytes);
  std::vector<Buffer> even_parts(const Buffer& whole) const;

  // Work to return to torch: null if the operation is done, because the caller wanted to wait.
  WorkPtr start(Call call, bool async);
  // The operations that this thread has started since startCoalescing(), or for a coalesced form.
  struct Batch {
    std::vector<WorkPtr> works;
    bool one_title = false;  // the profiler sees the batch, not each operation
  };
  // This thread's; null if it has begun none.
  const Batch* batch() const;
  void begin_batch(bool one_title);
  void add_to_batch(WorkPtr work);
  std::vector<WorkPtr> end_batch();
  // Starts one operation for each input, as one work; `start_one(i)` starts the i-th.
  WorkPtr start_all(const Kind& kind, const Tensors& inputs, bool async,
                    const std::function<void(size_t)>& start_one);
  WorkPtr message(MessageArguments::Kind kind, Tensors& tensors, int peer, int tag);

  // What the flight recorder enters, and what a profiler is told.
  RecordedCall record(const Call& call);
  RecordedCall record(const MessageArguments& arguments, const char* name, const Tensors& tensors);
  void profile(const Call& call, bool async, ProfilerEvent& event) const;
  void profile(const MessageArguments& arguments, const char* name, const Tensors& tensors,
               ProfilerEvent& event) const;
  // This group's number in the flight recorder.
  uint32_t recorded_as();
  std::vector<uint64_t> global_ranks() const;

  c10::intrusive_ptr<c10d::Backend> regrouped(
      const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
      const c10::intrusive_ptr<c10d::Backend::Options>& options,
      std::vector<uint64_t> global_ranks);

  // What `rank` of this group is in the job.
  uint64_t global_rank(int rank) const;

  std::shared_ptr<Communicator> communicator_;
  const c10::intrusive_ptr<Options> options_;  // second, as Gloo's: see Options
  const c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<Messenger> messenger_;
  const std::string& group_;  // its name, for errors
  const int process_id_;
  const std::shared_ptr<Observers> observers_ = std::make_shared<Observers>();
  const bool records_frames_;
  std::once_flag recorded_;
  std::optional<uint32_t> recorded_as_;
  uint32_t monitored_barriers_ = 0;
  int shrunk_ = 0;
  // The last group that was made out of this one.
  c10::weak_intrusive_ptr<c10d::Backend> regrouped_{c10::intrusive_ptr<c10d::Backend>()};

  mutable std::mutex batch_mutex_;
  std::unordered_map<std::thread::id, Batch> batches_;
};

}  // namespace hybridcomm
