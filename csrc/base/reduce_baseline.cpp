// The reduction kernels for any processor of the architecture, and the reference for the others.
#include "base/reduce_isa.h"

#define HC_VECTOR_BYTES 16
#include "base/reduce_loops.h"

namespace hybridcomm {

constinit const ReduceTable kReduceBaseline = make_table("baseline");

}  // namespace hybridcomm
