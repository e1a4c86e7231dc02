// The reduction kernels for AVX-512 (F, BW, DQ, VL).
#include "base/reduce_isa.h"

#if HC_REDUCE_X86
#include <immintrin.h>

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,f16c,prefer-vector-width=512")

namespace hybridcomm {
namespace {

// float16 by the hardware's conversion, which gives the bits that Float16Format gives.
template <RedOp kOp>
struct HalfRule : Reduction<kOp, Float16> {
  using Lanes = __m512;
  static constexpr std::size_t kLanes = 16;
  // The unmasked intrinsics of g++ 12 warn of an uninitialised value of their own.
  static constexpr __mmask16 kAll = 0xffff;

  static HC_ELEMENT Lanes load_lanes(const void* from, Float16) {
    return _mm512_maskz_cvtph_ps(kAll, _mm256_loadu_si256(static_cast<const __m256i*>(from)));
  }
  static HC_ELEMENT Lanes load_lanes(const void* from, float) {
    return _mm512_loadu_ps(static_cast<const float*>(from));
  }
  static HC_ELEMENT void store_lanes(void* to, Lanes x, Float16) {
    _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_maskz_cvtps_ph(kAll, x, _MM_FROUND_TO_NEAREST_INT));
  }
  static HC_ELEMENT void store_lanes(void* to, Lanes x, float) {
    _mm512_storeu_ps(static_cast<float*>(to), x);
  }
  static HC_ELEMENT Lanes combine(Lanes a, Lanes b) {
    return kOp == RedOp::kProduct ? _mm512_mul_ps(a, b) : _mm512_add_ps(a, b);
  }
  static HC_ELEMENT Lanes finish(Lanes a, std::uint32_t divisor) {
    return _mm512_div_ps(a, _mm512_set1_ps(static_cast<float>(divisor)));
  }

  using Reduction<kOp, Float16>::combine;
  using Reduction<kOp, Float16>::finish;
  static HC_ELEMENT float load(Float16 x) { return _cvtsh_ss(x.bits); }
  static HC_ELEMENT Float16 store(float x) {
    return {_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)};
  }
};

}  // namespace
}  // namespace hybridcomm

#define HC_HALF_RULE HalfRule
#include "base/reduce_loops.h"

namespace hybridcomm {

constinit const ReduceTable kReduceAvx512 = make_table("avx512");

}  // namespace hybridcomm
#endif
