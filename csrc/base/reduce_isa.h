// Private to base/reduce*.cpp and its tests: the kernel table of each instruction set.
#pragma once

#include "base/reduce.h"

namespace hybridcomm {

struct ReduceTable {
  const char* isa;
  ReduceKernel at[kDTypeCount][kRedOpCount];  // nullptr: the pair is refused
};

extern const ReduceTable kReduceBaseline;
#if defined(__x86_64__)
extern const ReduceTable kReduceAvx2;
extern const ReduceTable kReduceAvx512;
#endif

// The tables this processor can run, slowest first, ended by nullptr.
const ReduceTable* const* runnable_reduce_tables();

}  // namespace hybridcomm
