// What a reduction must give, worked out one element at a time and by other means than csrc/base:
// numbers are taken apart with ldexp, rounded with nearbyint, and added in double or __int128.
//
// A float operation is done in double and then rounded to float. For +, * and / that is the
// correctly rounded float result, since double has more than twice float's digits plus two.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "base/dtype.h"

namespace oracle {

using hybridcomm::DType;
using hybridcomm::RedOp;
using Bytes = unsigned char;

__extension__ typedef __int128 Int128;
__extension__ typedef unsigned __int128 UInt128;

enum class Kind { kBool, kSigned, kUnsigned, kFloat, kComplex, kMoveOnly };

// `part_bytes` is the size of one real number of the element.
struct Type {
  Kind kind;
  int part_bytes;
  int exponent_bits = 0, mantissa_bits = 0;
  bool has_inf = true, saturates = false;
};

inline Type type_of(DType dtype) {
  switch (dtype) {
    case DType::kBool: return {Kind::kBool, 1};
    case DType::kUInt8: return {Kind::kUnsigned, 1};
    case DType::kInt8: return {Kind::kSigned, 1};
    case DType::kUInt16: return {Kind::kUnsigned, 2};
    case DType::kInt16: return {Kind::kSigned, 2};
    case DType::kUInt32: return {Kind::kUnsigned, 4};
    case DType::kInt32: return {Kind::kSigned, 4};
    case DType::kUInt64: return {Kind::kUnsigned, 8};
    case DType::kInt64: return {Kind::kSigned, 8};
    case DType::kFloat16: return {Kind::kFloat, 2, 5, 10};
    case DType::kBFloat16: return {Kind::kFloat, 2, 8, 7};
    case DType::kFloat32: return {Kind::kFloat, 4, 8, 23};
    case DType::kFloat64: return {Kind::kFloat, 8, 11, 52};
    case DType::kComplex64: return {Kind::kComplex, 4, 8, 23};
    case DType::kComplex128: return {Kind::kComplex, 8, 11, 52};
    case DType::kFloat8E4M3fn: return {Kind::kFloat, 1, 4, 3, false, true};
    case DType::kFloat8E5M2: return {Kind::kFloat, 1, 5, 2, true, true};
    default: return {Kind::kMoveOnly, 1};
  }
}

inline int parts(const Type& type) { return type.kind == Kind::kComplex ? 2 : 1; }

inline std::uint64_t read_bits(const Bytes* from, int bytes) {
  std::uint64_t bits = 0;
  for (int i = 0; i < bytes; ++i) bits |= std::uint64_t{from[i]} << (8 * i);
  return bits;
}

inline void write_bits(Bytes* to, int bytes, std::uint64_t bits) {
  for (int i = 0; i < bytes; ++i) to[i] = static_cast<Bytes>(bits >> (8 * i));
}

inline double decode(const Type& type, std::uint64_t bits) {
  const std::uint64_t mantissa = bits & ((std::uint64_t{1} << type.mantissa_bits) - 1);
  const int top = (1 << type.exponent_bits) - 1;
  const int exponent = static_cast<int>(bits >> type.mantissa_bits) & top;
  const int bias = top / 2;
  double value = 0;
  if (exponent == top && type.has_inf) {
    value = mantissa == 0 ? INFINITY : NAN;
  } else if (!type.has_inf && exponent == top && mantissa == 7) {
    value = NAN;
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<double>(mantissa), 1 - bias - type.mantissa_bits);
  } else {
    const auto whole = static_cast<double>(mantissa | std::uint64_t{1} << type.mantissa_bits);
    value = std::ldexp(whole, exponent - bias - type.mantissa_bits);
  }
  return bits >> (type.exponent_bits + type.mantissa_bits) & 1 ? -value : value;
}

inline std::uint64_t encode(const Type& type, double value) {
  const int top = (1 << type.exponent_bits) - 1;
  const int bias = top / 2;
  const std::uint64_t one = std::uint64_t{1} << type.mantissa_bits;
  const std::uint64_t sign = std::uint64_t{std::signbit(value)}
                             << (type.exponent_bits + type.mantissa_bits);
  const std::uint64_t inf = static_cast<std::uint64_t>(top) << type.mantissa_bits;
  const std::uint64_t nan = type.has_inf ? inf | 1 : inf | (one - 1);
  const std::uint64_t largest = (type.has_inf ? inf : nan) - 1;
  if (std::isnan(value)) return sign | nan;
  if (std::isinf(value)) return sign | (type.has_inf ? inf : nan);
  const double magnitude = std::fabs(value);
  const int exponent = magnitude == 0 ? 1 - bias : std::max(std::ilogb(magnitude), 1 - bias);
  // In units of the last place: nearest, ties to even. A carry into the exponent comes out right.
  const auto units = static_cast<std::uint64_t>(
      std::nearbyint(std::ldexp(magnitude, type.mantissa_bits - exponent)));
  std::uint64_t code =
      (static_cast<std::uint64_t>(exponent + bias - 1) << type.mantissa_bits) + units;
  if (code > largest) code = type.saturates ? largest : inf;
  return sign | code;
}

// The accumulator's rounding: float, or double for the 8-byte types.
inline double rounded(const Type& type, double value) {
  return type.part_bytes == 8 ? value : static_cast<double>(static_cast<float>(value));
}

inline double less_of(double a, double b, bool want_max) {
  if (std::isnan(a) || std::isnan(b)) return NAN;
  if (a == b) return std::signbit(a) != want_max ? a : b;
  return (a < b) != want_max ? a : b;
}

inline double combine(const Type& type, RedOp op, double a, double b) {
  if (op == RedOp::kMin || op == RedOp::kMax) return less_of(a, b, op == RedOp::kMax);
  return rounded(type, op == RedOp::kProduct ? a * b : a + b);
}

inline UInt128 combine(RedOp op, UInt128 a, UInt128 b, bool is_signed) {
  const bool less = is_signed ? static_cast<Int128>(a) < static_cast<Int128>(b) : a < b;
  switch (op) {
    case RedOp::kProduct: return a * b;
    case RedOp::kMin: return less ? a : b;
    case RedOp::kMax: return less ? b : a;
    case RedOp::kBand: return a & b;
    case RedOp::kBor: return a | b;
    case RedOp::kBxor: return a ^ b;
    default: return a + b;
  }
}

inline UInt128 read_integer(const Type& type, const Bytes* from) {
  const std::uint64_t bits = read_bits(from, type.part_bytes);
  const int unused = 64 - 8 * type.part_bytes;
  if (type.kind != Kind::kSigned) return bits;
  return static_cast<UInt128>(
      static_cast<Int128>(static_cast<std::int64_t>(bits << unused) >> unused));
}

// Reduces element `i` of the sources into `out`.
inline void reduce_element(DType dtype, RedOp op, const std::vector<const Bytes*>& srcs,
                           std::size_t i, std::uint32_t divisor, Bytes* out) {
  const Type type = type_of(dtype);
  const std::size_t at = i * static_cast<std::size_t>(parts(type) * type.part_bytes);
  const bool divide = op == RedOp::kAvg && divisor != 0;
  if (type.kind == Kind::kBool) {
    int sum = 0;
    for (const Bytes* src : srcs) sum += src[at] != 0;
    const bool all = op == RedOp::kProduct || op == RedOp::kMin || op == RedOp::kBand;
    const int n = static_cast<int>(srcs.size());
    *out = op == RedOp::kBxor ? sum % 2 != 0 : all ? sum == n : sum > 0;
  } else if (type.kind == Kind::kSigned || type.kind == Kind::kUnsigned) {
    const bool is_signed = type.kind == Kind::kSigned;
    UInt128 acc = read_integer(type, srcs[0] + at);
    for (std::size_t s = 1; s < srcs.size(); ++s) {
      acc = combine(op, acc, read_integer(type, srcs[s] + at), is_signed);
    }
    if (divide && is_signed) acc = static_cast<UInt128>(static_cast<Int128>(acc) / divisor);
    if (divide && !is_signed) acc = acc / divisor;
    write_bits(out, type.part_bytes, static_cast<std::uint64_t>(acc));
  } else {
    const int n_parts = parts(type);
    const auto part = [&](std::size_t s, int p) {
      return decode(type, read_bits(srcs[s] + at + p * type.part_bytes, type.part_bytes));
    };
    double acc[2] = {part(0, 0), n_parts == 2 ? part(0, 1) : 0};
    for (std::size_t s = 1; s < srcs.size(); ++s) {
      if (n_parts == 1 || op != RedOp::kProduct) {
        for (int p = 0; p < n_parts; ++p) acc[p] = combine(type, op, acc[p], part(s, p));
      } else {
        const double a = acc[0], b = acc[1], c = part(s, 0), d = part(s, 1);
        const auto times = [&](double x, double y) { return rounded(type, x * y); };
        acc[0] = rounded(type, times(a, c) - times(b, d));
        acc[1] = rounded(type, times(a, d) + times(b, c));
      }
    }
    for (int p = 0; p < n_parts; ++p) {
      const double divided = divide ? rounded(type, acc[p] / static_cast<double>(divisor)) : acc[p];
      write_bits(out + p * type.part_bytes, type.part_bytes, encode(type, divided));
    }
  }
}

// Equal bits, or a NaN in both.
inline bool same(DType dtype, const Bytes* a, const Bytes* b) {
  const Type type = type_of(dtype);
  for (int p = 0; p < parts(type); ++p, a += type.part_bytes, b += type.part_bytes) {
    if (std::memcmp(a, b, static_cast<std::size_t>(type.part_bytes)) == 0) continue;
    if (type.kind != Kind::kFloat && type.kind != Kind::kComplex) return false;
    if (!std::isnan(decode(type, read_bits(a, type.part_bytes)))) return false;
    if (!std::isnan(decode(type, read_bits(b, type.part_bytes)))) return false;
  }
  return true;
}

}  // namespace oracle
