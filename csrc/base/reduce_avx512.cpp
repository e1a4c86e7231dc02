// The reduction kernels for AVX-512 (F, BW, DQ, VL).
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,f16c,prefer-vector-width=512")

#include "base/reduce_isa.h"

namespace hybridcomm {
namespace {

// float16 by the hardware's conversion, which gives the bits that Float16::Format gives.
template <RedOp kOp>
struct HalfRule : Reduction<kOp, Float16> {
  using Lanes = __m512;
  static constexpr std::size_t kLanes = 16;
  // The unmasked intrinsics of g++ 12 warn of an uninitialised value of their own.
  static constexpr __mmask16 kAll = 0xffff;

  static HC_ELEMENT void load_lanes(Lanes& lanes, const void* from, Float16) {
    lanes = _mm512_maskz_cvtph_ps(kAll, _mm256_loadu_si256(static_cast<const __m256i*>(from)));
  }
  static HC_ELEMENT void load_lanes(Lanes& lanes, const void* from, float) {
    lanes = _mm512_loadu_ps(static_cast<const float*>(from));
  }
  static HC_ELEMENT void store_lanes(void* to, const Lanes& lanes, Float16) {
    _mm256_storeu_si256(static_cast<__m256i*>(to),
                        _mm512_maskz_cvtps_ph(kAll, lanes, _MM_FROUND_TO_NEAREST_INT));
  }
  static HC_ELEMENT void store_lanes(void* to, const Lanes& lanes, float) {
    _mm512_storeu_ps(static_cast<float*>(to), lanes);
  }
  static HC_ELEMENT void combine_lanes(Lanes& a, const Lanes& b) {
    a = kOp == RedOp::kProduct ? a * b : a + b;
  }
  static HC_ELEMENT void finish_lanes(Lanes& a, std::uint32_t divisor) {
    a /= static_cast<float>(divisor);
  }
};

}  // namespace
}  // namespace hybridcomm

#define HC_HALF_RULE HalfRule
#define HC_VECTOR_BYTES 64
#include "base/reduce_loops.h"

namespace hybridcomm {

constinit const ReduceTable kReduceAvx512 = make_table("avx512");

}  // namespace hybridcomm
#endif
