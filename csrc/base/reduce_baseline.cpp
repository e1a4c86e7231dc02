// The reduction kernels for any processor of the architecture, and the reference for the others.
#include "base/reduce_isa.h"
#include "base/reduce_loops.h"

namespace hybridcomm {

constinit const ReduceTable kReduceBaseline = make_table("baseline");

}  // namespace hybridcomm
