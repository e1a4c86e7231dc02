// Compiled by `make nvcc-check`, never run: what base/ offers to kernels, instantiated for a
// device.
#include <cstdint>

#include "base/atomic.h"
#include "base/wait.h"

namespace hybridcomm {

// Waits for a peer's value, gives up when the group is aborted, and answers.
__global__ void echo(uint64_t* mailbox, uint64_t* reply, uint64_t* abort_word, uint64_t expected) {
  if (!spin_until([&] { return observe(*mailbox) == expected; }, *abort_word)) return;
  publish(*reply, expected);
}

// The remaining accesses, at the two widths that flags have.
template <class Word>
__global__ void accesses(Word* words) {
  Word expected = load_relaxed(words[0]) + load_acquire(words[1]);
  store_relaxed(words[2], fetch_add(words[3], Word{1}));
  if (compare_exchange(words[4], expected, Word{1})) store_release(words[5], expected);
}

template __global__ void accesses<uint32_t>(uint32_t*);
template __global__ void accesses<uint64_t>(uint64_t*);

}  // namespace hybridcomm
