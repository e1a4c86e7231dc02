// The reduction kernels for AVX2 and F16C.
#include "base/reduce_isa.h"

#if HC_REDUCE_X86
#include <immintrin.h>

#pragma GCC target("avx2,f16c")

namespace hybridcomm {
namespace {

// float16 by the hardware's conversion, which gives the bits that Float16Format gives.
template <RedOp kOp>
struct HalfRule : Reduction<kOp, Float16> {
  using Lanes = __m256;
  static constexpr std::size_t kLanes = 8;

  static HC_ELEMENT Lanes load_lanes(const void* from, Float16) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(from)));
  }
  static HC_ELEMENT Lanes load_lanes(const void* from, float) {
    return _mm256_loadu_ps(static_cast<const float*>(from));
  }
  static HC_ELEMENT void store_lanes(void* to, Lanes x, Float16) {
    _mm_storeu_si128(static_cast<__m128i*>(to), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  static HC_ELEMENT void store_lanes(void* to, Lanes x, float) {
    _mm256_storeu_ps(static_cast<float*>(to), x);
  }
  static HC_ELEMENT Lanes combine(Lanes a, Lanes b) {
    return kOp == RedOp::kProduct ? _mm256_mul_ps(a, b) : _mm256_add_ps(a, b);
  }
  static HC_ELEMENT Lanes finish(Lanes a, std::uint32_t divisor) {
    return _mm256_div_ps(a, _mm256_set1_ps(static_cast<float>(divisor)));
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

constinit const ReduceTable kReduceAvx2 = make_table("avx2");

}  // namespace hybridcomm
#endif
