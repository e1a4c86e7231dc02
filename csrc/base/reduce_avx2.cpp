// The reduction kernels for AVX2 and F16C.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#pragma GCC target("avx2,f16c")

#include "base/reduce_isa.h"

namespace hybridcomm {
namespace {

// float16 by the hardware's conversion, which gives the bits that Float16::Format gives.
template <RedOp kOp>
struct HalfRule : Reduction<kOp, Float16> {
  using Lanes = __m256;
  static constexpr std::size_t kLanes = 8;

  static HC_ELEMENT void load_lanes(Lanes& lanes, const void* from, Float16) {
    lanes = _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(from)));
  }
  static HC_ELEMENT void load_lanes(Lanes& lanes, const void* from, float) {
    lanes = _mm256_loadu_ps(static_cast<const float*>(from));
  }
  static HC_ELEMENT void store_lanes(void* to, const Lanes& lanes, Float16) {
    _mm_storeu_si128(static_cast<__m128i*>(to), _mm256_cvtps_ph(lanes, _MM_FROUND_TO_NEAREST_INT));
  }
  static HC_ELEMENT void store_lanes(void* to, const Lanes& lanes, float) {
    _mm256_storeu_ps(static_cast<float*>(to), lanes);
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
#define HC_VECTOR_BYTES 32
#include "base/reduce_loops.h"

namespace hybridcomm {

constinit const ReduceTable kReduceAvx2 = make_table("avx2");

}  // namespace hybridcomm
#endif
