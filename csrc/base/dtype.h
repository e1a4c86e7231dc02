// Element types and reduction operations: their codes, sizes and names, and the conversions between
// the small float formats and float. Host and device.
//
// The conversions are our own because no library has ours (round to nearest even, saturating fp8,
// a NaN that stays one) on every path, and every path must give the same bits. They are written
// without branches or tables so that a compiler vectorises a loop of them. No step takes or makes a
// subnormal float that matters, so flush-to-zero modes do not change the result.
#pragma once

#include <cstdint>

#include "base/platform.h"

// Element rules are always inlined: a copy of one that was compiled for AVX-512 must never become
// the program's only copy.
#if defined(__CUDACC__)
#define HC_ELEMENT HC_HOST_DEVICE __forceinline__
#else
#define HC_ELEMENT inline __attribute__((always_inline))
#endif

namespace hybridcomm {

// The codes travel between ranks and in recorded headers: append, never renumber.
enum class DType : std::uint8_t {
  kBool = 0,
  kUInt8 = 1,
  kInt8 = 2,
  kUInt16 = 3,
  kInt16 = 4,
  kUInt32 = 5,
  kInt32 = 6,
  kUInt64 = 7,
  kInt64 = 8,
  kFloat16 = 9,
  kBFloat16 = 10,
  kFloat32 = 11,
  kFloat64 = 12,
  kComplex64 = 13,
  kComplex128 = 14,
  kFloat8E4M3fn = 15,
  kFloat8E5M2 = 16,
  // Moved, never reduced.
  kFloat8E4M3fnuz = 17,
  kFloat8E5M2fnuz = 18,
  kComplex32 = 19,
};
inline constexpr int kDTypeCount = 20;

// torch's order.
enum class RedOp : std::uint8_t {
  kSum = 0,
  kAvg = 1,
  kProduct = 2,
  kMin = 3,
  kMax = 4,
  kBand = 5,
  kBor = 6,
  kBxor = 7,
  kPremulSum = 8,
};
inline constexpr int kRedOpCount = 9;

// Bytes of one element; 0 for a code that is none of ours.
HC_HOST_DEVICE constexpr std::uint32_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8:
    case DType::kInt8:
    case DType::kFloat8E4M3fn:
    case DType::kFloat8E5M2:
    case DType::kFloat8E4M3fnuz:
    case DType::kFloat8E5M2fnuz: return 1;
    case DType::kUInt16:
    case DType::kInt16:
    case DType::kFloat16:
    case DType::kBFloat16: return 2;
    case DType::kUInt32:
    case DType::kInt32:
    case DType::kFloat32:
    case DType::kComplex32: return 4;
    case DType::kUInt64:
    case DType::kInt64:
    case DType::kFloat64:
    case DType::kComplex64: return 8;
    case DType::kComplex128: return 16;
  }
  return 0;
}

// torch's name of the type; "unknown" for a code that is none of ours.
HC_HOST_DEVICE constexpr const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kBool: return "bool";
    case DType::kUInt8: return "uint8";
    case DType::kInt8: return "int8";
    case DType::kUInt16: return "uint16";
    case DType::kInt16: return "int16";
    case DType::kUInt32: return "uint32";
    case DType::kInt32: return "int32";
    case DType::kUInt64: return "uint64";
    case DType::kInt64: return "int64";
    case DType::kFloat16: return "float16";
    case DType::kBFloat16: return "bfloat16";
    case DType::kFloat32: return "float32";
    case DType::kFloat64: return "float64";
    case DType::kComplex64: return "complex64";
    case DType::kComplex128: return "complex128";
    case DType::kFloat8E4M3fn: return "float8_e4m3fn";
    case DType::kFloat8E5M2: return "float8_e5m2";
    case DType::kFloat8E4M3fnuz: return "float8_e4m3fnuz";
    case DType::kFloat8E5M2fnuz: return "float8_e5m2fnuz";
    case DType::kComplex32: return "complex32";
  }
  return "unknown";
}

// torch's name of the operation; "unknown" for a code that is none of ours.
HC_HOST_DEVICE constexpr const char* redop_name(RedOp op) {
  switch (op) {
    case RedOp::kSum: return "SUM";
    case RedOp::kAvg: return "AVG";
    case RedOp::kProduct: return "PRODUCT";
    case RedOp::kMin: return "MIN";
    case RedOp::kMax: return "MAX";
    case RedOp::kBand: return "BAND";
    case RedOp::kBor: return "BOR";
    case RedOp::kBxor: return "BXOR";
    case RedOp::kPremulSum: return "PREMUL_SUM";
  }
  return "unknown";
}

// One element as it lies in memory, for the types C++ does not have.
struct Bool {
  std::uint8_t bits;  // any non-zero byte is true
};
struct Float16 {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};
struct Float8E4M3fn {
  std::uint8_t bits;
};
struct Float8E5M2 {
  std::uint8_t bits;
};
template <class Real_>
struct Complex {
  using Real = Real_;
  Real re, im;
};

template <class T>
struct TypeTag {
  using type = T;
};

// Calls visit(TypeTag<T>{}) with the element type of `dtype`. False, and no call, for a dtype that
// is only moved. Host only: a device kernel is compiled for one type.
template <class Visit>
constexpr bool visit_dtype(DType dtype, Visit&& visit) {
  switch (dtype) {
    case DType::kBool: return visit(TypeTag<Bool>{}), true;
    case DType::kUInt8: return visit(TypeTag<std::uint8_t>{}), true;
    case DType::kInt8: return visit(TypeTag<std::int8_t>{}), true;
    case DType::kUInt16: return visit(TypeTag<std::uint16_t>{}), true;
    case DType::kInt16: return visit(TypeTag<std::int16_t>{}), true;
    case DType::kUInt32: return visit(TypeTag<std::uint32_t>{}), true;
    case DType::kInt32: return visit(TypeTag<std::int32_t>{}), true;
    case DType::kUInt64: return visit(TypeTag<std::uint64_t>{}), true;
    case DType::kInt64: return visit(TypeTag<std::int64_t>{}), true;
    case DType::kFloat16: return visit(TypeTag<Float16>{}), true;
    case DType::kBFloat16: return visit(TypeTag<BFloat16>{}), true;
    case DType::kFloat32: return visit(TypeTag<float>{}), true;
    case DType::kFloat64: return visit(TypeTag<double>{}), true;
    case DType::kComplex64: return visit(TypeTag<Complex<float>>{}), true;
    case DType::kComplex128: return visit(TypeTag<Complex<double>>{}), true;
    case DType::kFloat8E4M3fn: return visit(TypeTag<Float8E4M3fn>{}), true;
    case DType::kFloat8E5M2: return visit(TypeTag<Float8E5M2>{}), true;
    case DType::kFloat8E4M3fnuz:
    case DType::kFloat8E5M2fnuz:
    case DType::kComplex32: break;
  }
  return false;
}

template <class To, class From>
HC_ELEMENT constexpr To bit_cast(From from) {
  return __builtin_bit_cast(To, from);
}

// A float format of 1 sign bit, `kExponentBits` and `kMantissaBits`, with float's layout of normal
// and subnormal numbers. `kLargest` is the code of the largest finite number; the codes above it are
// Inf, if the format has one, then NaN. What is too large to represent becomes `kOverflow`.
//
// Codes are int32 so that compilers without unsigned vector compares vectorise the tests.
template <int kExponentBits, int kMantissaBits, std::int32_t kLargest, bool kHasInf,
          std::int32_t kOverflow>
struct SmallFloat {
  static constexpr int kShift = 23 - kMantissaBits;                 // mantissa bits float has more
  static constexpr int kBiasGap = 128 - (1 << (kExponentBits - 1));  // how much more float's bias is
  static constexpr std::int32_t kSign = 1 << (kExponentBits + kMantissaBits);
  static constexpr std::int32_t kFirstNormal = 1 << kMantissaBits;
  static constexpr std::int32_t kFloatInf = 0x7f800000;
  static constexpr std::int32_t kFloatQuiet = 0x00400000;

  // The smallest subnormal as a float, and the power of two whose unit in the last place it is.
  static constexpr float kStep =
      bit_cast<float>(std::int32_t{(kBiasGap + 1 - kMantissaBits) << 23});
  static constexpr std::int32_t kRoundToStepBits = (kBiasGap + 1 - kMantissaBits + 23) << 23;

  static HC_ELEMENT constexpr float to_float(std::int32_t code) {
    const std::int32_t magnitude = code & (kSign - 1);
    const std::int32_t normal = (magnitude << kShift) + (kBiasGap << 23);
    const std::int32_t subnormal = bit_cast<std::int32_t>(static_cast<float>(magnitude) * kStep);
    const std::int32_t special = kFloatInf | (magnitude << kShift) |
                                 (magnitude > kLargest + kHasInf ? kFloatQuiet : 0);
    std::int32_t bits = magnitude < kFirstNormal ? subnormal : normal;
    bits = magnitude > kLargest ? special : bits;
    const std::uint32_t sign = (code & kSign) != 0 ? 0x80000000u : 0u;
    return bit_cast<float>(static_cast<std::uint32_t>(bits) | sign);
  }

  static HC_ELEMENT constexpr std::int32_t from_float(float value) {
    const std::uint32_t all = bit_cast<std::uint32_t>(value);
    const std::int32_t bits = static_cast<std::int32_t>(all & 0x7fffffffu);
    // Normal: half a unit, less a hair when the unit's bit is even, then cut: nearest, ties to even.
    const std::uint32_t magnitude = all & 0x7fffffffu;
    const std::uint32_t half = (1u << (kShift - 1)) - 1u + (magnitude >> kShift & 1u);
    const std::int32_t normal = static_cast<std::int32_t>((magnitude + half) >> kShift) -
                                (kBiasGap << kMantissaBits);
    // Subnormal: adding a number with that unit makes the addition itself do the rounding.
    const float shifted = bit_cast<float>(bits) + bit_cast<float>(kRoundToStepBits);
    const std::int32_t subnormal = bit_cast<std::int32_t>(shifted) - kRoundToStepBits;
    const std::int32_t nan = (kLargest + 1) | (kFirstNormal >> 1) |
                             (bits >> kShift & (kFirstNormal - 1));
    const std::int32_t inf = kHasInf ? kLargest + 1 : kSign - 1;

    std::int32_t code = normal < kOverflow ? normal : kOverflow;
    code = bits < (kBiasGap + 1) << 23 ? subnormal : code;
    code = bits == kFloatInf ? inf : code;
    code = bits > kFloatInf ? (kHasInf ? nan : kSign - 1) : code;
    return code | static_cast<std::int32_t>(all >> 31) * kSign;
  }
};

using Float16Format = SmallFloat<5, 10, 0x7bff, true, 0x7c00>;       // too large: Inf
using Float8E4M3fnFormat = SmallFloat<4, 3, 0x7e, false, 0x7e>;      // too large: 448
using Float8E5M2Format = SmallFloat<5, 2, 0x7b, true, 0x7b>;         // too large: 57344

HC_ELEMENT constexpr float to_float(Float16 x) { return Float16Format::to_float(x.bits); }
HC_ELEMENT constexpr float to_float(Float8E4M3fn x) { return Float8E4M3fnFormat::to_float(x.bits); }
HC_ELEMENT constexpr float to_float(Float8E5M2 x) { return Float8E5M2Format::to_float(x.bits); }
HC_ELEMENT constexpr float to_float(BFloat16 x) {
  return bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

// from_float<T>(value): round to nearest even; a NaN becomes a quiet NaN of the same sign.
template <class T>
HC_ELEMENT constexpr T from_float(float value);

template <>
HC_ELEMENT constexpr Float16 from_float(float value) {
  return {static_cast<std::uint16_t>(Float16Format::from_float(value))};
}
template <>
HC_ELEMENT constexpr Float8E4M3fn from_float(float value) {
  return {static_cast<std::uint8_t>(Float8E4M3fnFormat::from_float(value))};
}
template <>
HC_ELEMENT constexpr Float8E5M2 from_float(float value) {
  return {static_cast<std::uint8_t>(Float8E5M2Format::from_float(value))};
}
template <>
HC_ELEMENT constexpr BFloat16 from_float(float value) {
  const std::uint32_t bits = bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const bool is_nan = static_cast<std::int32_t>(bits & 0x7fffffffu) > 0x7f800000;
  return {static_cast<std::uint16_t>(is_nan ? bits >> 16 | 0x40u : rounded)};
}

}  // namespace hybridcomm
