// Which kernel serves a pair, and why a pair is refused.
#include "base/reduce.h"

#include <cstdlib>
#include <cstring>

#include "base/reduce_isa.h"

namespace hybridcomm {
namespace {

constexpr const char* kIsaVariable = "HYBRIDCOMM_ISA";

struct Choice {
  const ReduceTable* table;
  const char* error;
};

Choice choose() {
  const ReduceTable* const* tables = runnable_reduce_tables();
  const char* wanted = std::getenv(kIsaVariable);
  const bool any = wanted == nullptr || *wanted == '\0';
  const ReduceTable* best = nullptr;
  for (; *tables != nullptr; ++tables) {
    if (any || std::strcmp(wanted, (*tables)->isa) == 0) best = *tables;
  }
  if (best != nullptr) return {best, nullptr};
  return {
      &kReduceBaseline,
      "HYBRIDCOMM_ISA names an instruction set that this processor lacks or that does not exist "
      "(known: baseline, avx2, avx512)."};
}

// Chosen at the first call. Not an ifunc: those are resolved before ThreadSanitizer is ready.
const Choice& choice() {
  static const Choice chosen = choose();
  return chosen;
}

// Reasons that lie in the pair itself.
const char* undefined_pair(DType dtype, RedOp op) {
  const int d = static_cast<int>(dtype), o = static_cast<int>(op);
  if (d >= kDTypeCount) return "The element type is unknown.";
  if (o >= kRedOpCount) return "The reduction operation is unknown.";
  if (kReduceBaseline.at[d][o] != nullptr) return nullptr;
  switch (dtype) {
    case DType::kFloat8E4M3fnuz:
    case DType::kFloat8E5M2fnuz:
    case DType::kComplex32: return "This element type is moved but not reduced.";
    default: break;
  }
  switch (op) {
    case RedOp::kPremulSum: return "PREMUL_SUM is not supported: multiply the input, then SUM.";
    case RedOp::kAvg: return "AVG of bool has no meaning: use SUM, which is a logical or.";
    case RedOp::kMin:
    case RedOp::kMax: return "Complex numbers have no order: MIN and MAX are refused.";
    default: return "BAND, BOR and BXOR are for integers and bool.";
  }
}

}  // namespace

const ReduceTable* const* runnable_reduce_tables() {
  static const auto* const tables = [] {
    static const ReduceTable* found[4] = {&kReduceBaseline};
#if defined(__x86_64__)
    std::size_t n = 1;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
      found[n++] = &kReduceAvx2;
      if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        found[n++] = &kReduceAvx512;
      }
    }
#endif
    return found;
  }();
  return tables;
}

ReduceKernel reduce_kernel(DType dtype, RedOp op) {
  if (reduce_refusal(dtype, op) != nullptr) return nullptr;
  return choice().table->at[static_cast<int>(dtype)][static_cast<int>(op)];
}

bool reduce_supported(DType dtype, RedOp op) { return reduce_refusal(dtype, op) == nullptr; }

const char* reduce_refusal(DType dtype, RedOp op) {
  const char* reason = undefined_pair(dtype, op);
  return reason != nullptr ? reason : reduce_isa_error();
}

const char* reduce_isa() { return choice().table->isa; }

const char* reduce_isa_error() { return choice().error; }

}  // namespace hybridcomm
