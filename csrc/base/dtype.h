// Element types and reduction operations: their codes, sizes and names, and the conversions between
// the small float formats and float. Host and device.
//
// The conversions are our own because no library has ours (round to nearest even, saturating fp8,
// a NaN that stays one) on every path, and every path must give the same bits. They have no branch
// and no table and work alike on a float and on a vector of floats. No step makes a subnormal
// float, so flush-to-zero modes do not change the result.
#pragma once

#include <cstdint>
#include <type_traits>

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

template <class To, class From>
HC_ELEMENT constexpr To bit_cast(From from) {
  return __builtin_bit_cast(To, from);
}

// The integers of a float, or of a vector of floats (g++'s vector_size), whose compares give
// integers.
template <class Float>
using IntOf =
    std::conditional_t<std::is_same_v<Float, float>, std::int32_t, decltype(Float{} < Float{})>;

// A float format of 1 sign bit, `kExponentBits` and `kMantissaBits`, with float's layout of normal
// and subnormal numbers. `kLargest` is the code of the largest finite number; the codes above it
// are Inf, if the format has one, then NaN. What is too large to represent becomes `kOverflow`.
//
// Codes that come and go may have anything above their sign bit.
template <int kExponentBits, int kMantissaBits, std::int32_t kLargest, bool kHasInf,
          std::int32_t kOverflow>
struct SmallFloat {
  static constexpr int kSignBit = kExponentBits + kMantissaBits;
  static constexpr int kShift = 23 - kMantissaBits;  // mantissa bits that float has more
  static constexpr std::int32_t kMagnitude = (1 << kSignBit) - 1;
  static constexpr std::int32_t kMantissa = (1 << kMantissaBits) - 1;
  static constexpr std::int32_t kFloatMagnitude = 0x7fffffff;
  static constexpr std::int32_t kFloatInf = 0x7f800000;
  // How much larger float's exponent bias is.
  static constexpr std::int32_t kRebias = (128 - (1 << (kExponentBits - 1))) << 23;
  // The power of two whose unit in the last place, as a float, is this format's least subnormal:
  // added to a small number, it rounds to a multiple of that and holds the multiple in its
  // mantissa.
  static constexpr std::int32_t kRounderBits = kRebias + ((24 - kMantissaBits) << 23);
  static constexpr float kRounder = bit_cast<float>(kRounderBits);

  template <class Float = float>
  static HC_ELEMENT constexpr Float to_float(IntOf<Float> code) {
    using Int = IntOf<Float>;
    const Int magnitude = code & kMagnitude;
    const Int widened = magnitude << kShift;
    const Int subnormal = bit_cast<Int>(bit_cast<Float>(magnitude + kRounderBits) - kRounder);
    Int bits = widened + kRebias;
    bits = magnitude > kLargest ? widened | kFloatInf : bits;
    bits = magnitude > kMantissa ? bits : subnormal;
    return bit_cast<Float>(bits | (code & ~kMagnitude) << (31 - kSignBit));
  }

  template <class Float, class Int = IntOf<Float>>
  static HC_ELEMENT constexpr Int from_float(Float value) {
    const Int all = bit_cast<Int>(value);
    const Int bits = all & kFloatMagnitude;
    // Add half a unit, less a hair when the unit's bit is even, then cut: nearest, ties to even.
    const Int odd = bits >> kShift & 1;
    const Int normal = (bits - kRebias + ((1 << (kShift - 1)) - 1) + odd) >> kShift;
    const Int subnormal = bit_cast<Int>(bit_cast<Float>(bits) + kRounder) - kRounderBits;
    Int code = normal < kOverflow ? normal : kOverflow;
    code = bits < kRebias + (1 << 23) ? subnormal : code;
    if constexpr (kHasInf) {
      constexpr std::int32_t kInf = kLargest + 1, kQuiet = 1 << (kMantissaBits - 1);
      if constexpr (kOverflow != kInf) code = bits == kFloatInf ? kInf : code;
      code = bits > kFloatInf ? (bits >> kShift & kMantissa) | (kInf | kQuiet) : code;
    } else {
      code = bits >= kFloatInf ? code | kMagnitude : code;
    }
    return code | (all >> (31 - kSignBit) & ~kMagnitude);
  }
};

struct BFloat16Format {
  template <class Float = float>
  static HC_ELEMENT constexpr Float to_float(IntOf<Float> code) {
    return bit_cast<Float>(code << 16);
  }

  template <class Float, class Int = IntOf<Float>>
  static HC_ELEMENT constexpr Int from_float(Float value) {
    const Int bits = bit_cast<Int>(value);
    // To a NaN is added what makes it quiet.
    const Int step = value == value ? (bits >> 16 & 1) + 0x7fff : ~bits & 0x00400000;
    return (bits + step) >> 16;
  }
};

// One element of a narrow float type as it lies in memory.
struct Float16 {
  std::uint16_t bits;
  using Format = SmallFloat<5, 10, 0x7bff, true, 0x7c00>;  // too large: Inf
};
struct BFloat16 {
  std::uint16_t bits;
  using Format = BFloat16Format;
};
struct Float8E4M3fn {
  std::uint8_t bits;
  using Format = SmallFloat<4, 3, 0x7e, false, 0x7e>;  // too large: 448
};
struct Float8E5M2 {
  std::uint8_t bits;
  using Format = SmallFloat<5, 2, 0x7b, true, 0x7b>;  // too large: 57344
};

template <class T>
concept NarrowFloat = requires { typename T::Format; };

template <NarrowFloat T>
HC_ELEMENT constexpr float to_float(T x) {
  return T::Format::to_float(x.bits);
}

// Rounds to nearest even. A NaN becomes a quiet NaN of the same sign.
template <NarrowFloat T>
HC_ELEMENT constexpr T from_float(float value) {
  return {static_cast<decltype(T::bits)>(T::Format::from_float(value))};
}

// The other types that C++ does not have.
struct Bool {
  std::uint8_t bits;  // any non-zero byte is true
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

}  // namespace hybridcomm
