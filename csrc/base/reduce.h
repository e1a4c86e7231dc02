// Reductions: what one element becomes (host and device), and the vectorised host kernels.
//
// The numeric contract, the same bits on every path:
//   * Operands are taken in the order given, which callers make ascending rank order.
//   * float16, bfloat16 and float8 are summed and multiplied in float and rounded once, when the
//     result is stored. float, double and complex stay in their own type. No multiply is fused with
//     an add, so compile with -ffp-contract=off (--fmad=false).
//   * Integers wrap. AVG of integers sums exactly in a wider type and divides toward zero.
//   * MIN and MAX hand a NaN on, and order -0 below +0. Any NaN equals any NaN.
//   * Any non-zero byte is a true bool; a bool result is 0 or 1. SUM and MAX are OR, PRODUCT and
//   MIN
//     are AND.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"

namespace hybridcomm {

// ---- the rule for one element -------------------------------------------------------------------

// Reduction<op, T> has
//   Acc                   what operands are accumulated in
//   Acc load(T)
//   Acc combine(Acc, Acc)
//   Acc finish(Acc, divisor)   the division of AVG; nothing for the others
//   T store(Acc)          where rounding happens
//   kPartialIsElement     true if a partial result stored and loaded again is unchanged
// and is not defined for a pair that reduce_refusal() refuses. AVG with divisor 0 (a partial
// result, to be divided by a later step) is SUM.
template <RedOp kOp, class T>
struct Reduction;

template <RedOp kOp, class T>
concept Reducible = requires { typename Reduction<kOp, T>::Acc; };

template <RedOp kOp>
inline constexpr bool kIsMinMax = kOp == RedOp::kMin || kOp == RedOp::kMax;
template <RedOp kOp>
inline constexpr bool kIsBitwise = kOp == RedOp::kBand || kOp == RedOp::kBor || kOp == RedOp::kBxor;
template <RedOp kOp>
inline constexpr bool kIsArithmetic =
    kOp == RedOp::kSum || kOp == RedOp::kAvg || kOp == RedOp::kProduct;

namespace detail {

__extension__ typedef __int128 Int128;
__extension__ typedef unsigned __int128 UInt128;

template <RedOp kOp, class T>
HC_ELEMENT constexpr T min_or_max(T a, T b) {
  return kOp == RedOp::kMin ? (b < a ? b : a) : (a < b ? b : a);
}

template <RedOp kOp, class T>
HC_ELEMENT constexpr T bitwise(T a, T b) {
  if constexpr (kOp == RedOp::kBand) return a & b;
  if constexpr (kOp == RedOp::kBor) return a | b;
  if constexpr (kOp == RedOp::kBxor) return a ^ b;
}

// Sums up to 2^16 Ts exactly, and 2^32 of those of 32 or 64 bits.
template <class T>
using ExactSum = std::conditional_t<
    std::is_signed_v<T>,
    std::conditional_t<sizeof(T) <= 2, std::int32_t,
                       std::conditional_t<sizeof(T) == 4, std::int64_t, Int128>>,
    std::conditional_t<sizeof(T) <= 2, std::uint32_t,
                       std::conditional_t<sizeof(T) == 4, std::uint64_t, UInt128>>>;

// Arithmetic modulo 2^bits without the signed overflow that int promotion would bring.
template <class T>
using Wrapping = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

// How the bits of a float type are read: `Key` is a signed integer of its size and `kLargest` the
// magnitude above which every code is a NaN.
template <class T>
struct FloatBits;
template <>
struct FloatBits<Float16> {
  using Key = std::int16_t;
  static constexpr Key kLargest = 0x7c00;
};
template <>
struct FloatBits<BFloat16> {
  using Key = std::int16_t;
  static constexpr Key kLargest = 0x7f80;
};
template <>
struct FloatBits<Float8E4M3fn> {
  using Key = std::int8_t;
  static constexpr Key kLargest = 0x7e;
};
template <>
struct FloatBits<Float8E5M2> {
  using Key = std::int8_t;
  static constexpr Key kLargest = 0x7c;
};
template <>
struct FloatBits<float> {
  using Key = std::int32_t;
  static constexpr Key kLargest = 0x7f800000;
};
template <>
struct FloatBits<double> {
  using Key = std::int64_t;
  static constexpr Key kLargest = 0x7ff0000000000000;
};

template <class T>
concept AnyFloat = requires { FloatBits<T>::kLargest; };

template <RedOp kOp, class T>
HC_ELEMENT constexpr T add_or_multiply(T a, T b) {
  if constexpr (kOp == RedOp::kProduct) return a * b;
  return a + b;
}

}  // namespace detail

// Integers but AVG: modulo 2^bits.
template <RedOp kOp, class T>
  requires(std::is_integral_v<T> && kOp != RedOp::kAvg && kOp != RedOp::kPremulSum)
struct Reduction<kOp, T> {
  using Acc = T;
  static constexpr bool kPartialIsElement = true;
  static HC_ELEMENT constexpr Acc load(T x) { return x; }
  static HC_ELEMENT constexpr Acc combine(Acc a, Acc b) {
    if constexpr (kIsMinMax<kOp>) {
      return detail::min_or_max<kOp>(a, b);
    } else if constexpr (kIsBitwise<kOp>) {
      return detail::bitwise<kOp>(a, b);
    } else {
      using Wrapping = detail::Wrapping<T>;
      return static_cast<T>(
          detail::add_or_multiply<kOp>(static_cast<Wrapping>(a), static_cast<Wrapping>(b)));
    }
  }
  static HC_ELEMENT constexpr Acc finish(Acc a, std::uint32_t) { return a; }
  static HC_ELEMENT constexpr T store(Acc a) { return a; }
};

template <RedOp kOp, class T>
  requires(std::is_integral_v<T> && kOp == RedOp::kAvg)
struct Reduction<kOp, T> {
  using Acc = detail::ExactSum<T>;
  static constexpr bool kPartialIsElement = false;
  static HC_ELEMENT constexpr Acc load(T x) { return x; }
  static HC_ELEMENT constexpr Acc combine(Acc a, Acc b) { return a + b; }
  static HC_ELEMENT constexpr Acc finish(Acc a, std::uint32_t divisor) {
    return a / static_cast<Acc>(divisor);
  }
  static HC_ELEMENT constexpr T store(Acc a) { return static_cast<T>(a); }
};

template <RedOp kOp>
  requires(kOp != RedOp::kAvg && kOp != RedOp::kPremulSum)
struct Reduction<kOp, Bool> {
  using Acc = std::uint8_t;  // 0 or 1
  static constexpr bool kPartialIsElement = true;
  static HC_ELEMENT constexpr Acc load(Bool x) { return x.bits != 0; }
  static HC_ELEMENT constexpr Acc combine(Acc a, Acc b) {
    constexpr bool kAnd = kOp == RedOp::kProduct || kOp == RedOp::kMin || kOp == RedOp::kBand;
    constexpr RedOp kLogical = kAnd ? RedOp::kBand : kOp == RedOp::kBxor ? kOp : RedOp::kBor;
    return detail::bitwise<kLogical>(a, b);
  }
  static HC_ELEMENT constexpr Acc finish(Acc a, std::uint32_t) { return a; }
  static HC_ELEMENT constexpr Bool store(Acc a) { return {a}; }
};

template <RedOp kOp, class T>
  requires(std::is_floating_point_v<T> && kIsArithmetic<kOp>)
struct Reduction<kOp, T> {
  using Acc = T;
  static constexpr bool kPartialIsElement = true;
  static HC_ELEMENT constexpr Acc load(T x) { return x; }
  static HC_ELEMENT constexpr Acc combine(Acc a, Acc b) {
    return detail::add_or_multiply<kOp>(a, b);
  }
  static HC_ELEMENT constexpr Acc finish(Acc a, std::uint32_t divisor) {
    return kOp == RedOp::kAvg ? a / static_cast<Acc>(divisor) : a;
  }
  static HC_ELEMENT constexpr T store(Acc a) { return a; }
};

template <RedOp kOp, class T>
  requires(NarrowFloat<T> && kIsArithmetic<kOp>)
struct Reduction<kOp, T> : Reduction<kOp, float> {
  static constexpr bool kPartialIsElement = false;
  static HC_ELEMENT constexpr float load(T x) { return to_float(x); }
  static HC_ELEMENT constexpr T store(float a) { return from_float<T>(a); }
};

// MIN and MAX of floats compare integers. A float's bits are sign and magnitude; flipping the
// magnitude of the negative ones gives integers in the order of the numbers, -0 just below +0. A
// NaN becomes the least key for MIN and the greatest for MAX, whose bits (all ones; all but the
// sign) are again a NaN in every format. So no conversion and no float compare is needed.
template <RedOp kOp, class T>
  requires(detail::AnyFloat<T> && kIsMinMax<kOp>)
struct Reduction<kOp, T> {
  using Acc = typename detail::FloatBits<T>::Key;
  static constexpr bool kPartialIsElement = true;
  static constexpr Acc kMagnitude =
      static_cast<Acc>(static_cast<std::make_unsigned_t<Acc>>(~std::make_unsigned_t<Acc>{0}) >> 1);
  static constexpr Acc kNaN = kOp == RedOp::kMin ? static_cast<Acc>(~kMagnitude) : kMagnitude;

  static HC_ELEMENT constexpr Acc flip(Acc bits) {
    return static_cast<Acc>(bits ^ (bits >> (8 * sizeof(Acc) - 1) & kMagnitude));
  }
  static HC_ELEMENT constexpr Acc load(T x) {
    const Acc bits = bit_cast<Acc>(x);
    const bool is_nan = static_cast<Acc>(bits & kMagnitude) > detail::FloatBits<T>::kLargest;
    return is_nan ? kNaN : flip(bits);
  }
  static HC_ELEMENT constexpr Acc combine(Acc a, Acc b) { return detail::min_or_max<kOp>(a, b); }
  static HC_ELEMENT constexpr Acc finish(Acc a, std::uint32_t) { return a; }
  static HC_ELEMENT constexpr T store(Acc a) { return bit_cast<T>(flip(a)); }
};

template <RedOp kOp, class Real>
  requires(kIsArithmetic<kOp>)
struct Reduction<kOp, Complex<Real>> {
  using Acc = Complex<Real>;
  static constexpr bool kPartialIsElement = true;
  static HC_ELEMENT constexpr Acc load(Acc x) { return x; }
  static HC_ELEMENT constexpr Acc combine(Acc a, Acc b) {
    if constexpr (kOp == RedOp::kProduct) {
      // a.re * b.re - a.im * b.im, written without a subtraction: from one beside an addition g++
      // 12 makes vfmaddsub even under -ffp-contract=off.
      return {a.re * b.re + negated(a.im) * b.im, a.re * b.im + a.im * b.re};
    } else {
      return {a.re + b.re, a.im + b.im};
    }
  }
  static HC_ELEMENT constexpr Acc finish(Acc a, std::uint32_t divisor) {
    if constexpr (kOp == RedOp::kAvg) {
      return {a.re / static_cast<Real>(divisor), a.im / static_cast<Real>(divisor)};
    } else {
      return a;
    }
  }
  static HC_ELEMENT constexpr Acc store(Acc a) { return a; }

 private:
  static HC_ELEMENT constexpr Real negated(Real x) {
    using Bits = std::make_unsigned_t<typename detail::FloatBits<Real>::Key>;
    return bit_cast<Real>(bit_cast<Bits>(x) ^ Bits{1} << (8 * sizeof(Real) - 1));
  }
};

// Reduces n_srcs >= 1 arrays of `count` elements into dst, shared out among the threads of `group`
// (which has thread_id() and size()). `dst` may be one of `srcs`. All are naturally aligned. Does
// not synchronise the group.
template <RedOp kOp, class T, class Group>
  requires Reducible<kOp, T>
HC_HOST_DEVICE void reduce_elements(const Group& group, T* dst, const T* const* srcs,
                                    std::uint32_t n_srcs, std::size_t count,
                                    std::uint32_t divisor) {
  if constexpr (kOp == RedOp::kAvg) {
    if (divisor == 0) {
      return reduce_elements<RedOp::kSum>(group, dst, srcs, n_srcs, count, divisor);
    }
  }
  using Rule = Reduction<kOp, T>;
  for (std::size_t i = group.thread_id(); i < count; i += group.size()) {
    typename Rule::Acc acc = Rule::load(srcs[0][i]);
    for (std::uint32_t s = 1; s < n_srcs; ++s) acc = Rule::combine(acc, Rule::load(srcs[s][i]));
    dst[i] = Rule::store(Rule::finish(acc, divisor));
  }
}

// ---- host kernels -------------------------------------------------------------------------------

// Reduces `n_srcs` arrays of `count` elements into `dst`.
//
// dst, srcs: at any address, aligned or not. `dst` may be exactly one or more of `srcs`; otherwise
//   it does not overlap them.
// n_srcs: 1 to 65536. One source is copied under the operation's rule (a bool becomes 0 or 1).
// divisor: for AVG, the world size if this step completes the value, else 0. Ignored by the others.
using ReduceKernel = void (*)(void* dst, const void* const* srcs, std::uint32_t n_srcs,
                              std::size_t count, std::uint32_t divisor);

// The fastest kernel this processor runs; nullptr if the pair is refused.
ReduceKernel reduce_kernel(DType dtype, RedOp op);

bool reduce_supported(DType dtype, RedOp op);

// Why the pair is refused, as a sentence to show to the user; nullptr if it is supported.
const char* reduce_refusal(DType dtype, RedOp op);

// The instruction set in use, chosen once: "baseline", "avx2" or "avx512". The environment variable
// HYBRIDCOMM_ISA asks for a particular one.
const char* reduce_isa();

// A sentence if HYBRIDCOMM_ISA names a set that does not exist or that this processor lacks, else
// nullptr. Every reduction is then refused with the same sentence, so that a mistyped value is not
// taken for a measurement; a process group asks here first, to say so at once.
const char* reduce_isa_error();

}  // namespace hybridcomm
