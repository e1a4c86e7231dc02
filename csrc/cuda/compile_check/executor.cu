// Instantiates the executor for a block, as the CUDA executor will run it.
#include "cuda/block_group.cuh"
#include "executor/advance.h"

namespace hybridcomm {

template <RedOp kOp, class T>
__global__ void run_program(Execution execution, uint64_t* abort_word) {
  __shared__ bool flag;
  BlockGroup<kOp, T> group{&flag};
  Progress progress;
  spin_until(
      [&] {
        progress = advance_lane(group, execution, blockIdx.x, 1u << 20);
        return progress.outcome == Outcome::kDone || progress.outcome == Outcome::kCorrupt;
      },
      *abort_word);
}

template __global__ void run_program<RedOp::kSum, float>(Execution, uint64_t*);
template __global__ void run_program<RedOp::kAvg, BFloat16>(Execution, uint64_t*);
template __global__ void run_program<RedOp::kMax, std::int32_t>(Execution, uint64_t*);

}  // namespace hybridcomm
