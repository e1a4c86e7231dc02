// Reductions against the oracle, bit for bit, on every instruction set this processor has.
//
//   reduce_test                 all checks; each comparer first catches planted faults
//   reduce_test --isa           prints the chosen instruction set, or the error and exits with 3
//   reduce_test --bench         GB/s (bytes read plus written) of SUM, two sources of 256 KB
//   reduce_test --decode DTYPE  writes, as float32, the value of each code of a narrow float type
//   reduce_test --encode DTYPE  reads float32 values and writes their codes

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/reduce_isa.h"
#include "check.h"
#include "reduce_oracle.h"

namespace {

using namespace hybridcomm;
using oracle::Bytes;
using oracle::Kind;

constexpr RedOp kOps[] = {RedOp::kSum, RedOp::kAvg,  RedOp::kProduct, RedOp::kMin,
                          RedOp::kMax, RedOp::kBand, RedOp::kBor,     RedOp::kBxor};

// ---- data ---------------------------------------------------------------------------------------

struct Random {
  std::uint64_t state;
  std::uint64_t next() {  // SplitMix64
    std::uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
};

// Any bits; the ends of the range, zeros, Inf and NaN; and most often numbers of like magnitude,
// whose sums round and tie.
std::uint64_t random_part(const oracle::Type& type, Random& random) {
  const std::uint64_t r = random.next();
  if (type.kind == Kind::kBool) return r & 1 ? r >> 8 & 255 : 0;
  if (r % 8 < 2) return random.next();
  if (type.kind == Kind::kSigned || type.kind == Kind::kUnsigned) {
    const int bits = 8 * type.part_bytes;
    const std::uint64_t ends[] = {0, 1, ~0ull, ~0ull >> (64 - bits + 1), 1ull << (bits - 1), 100};
    return r % 8 < 5 ? ends[r / 8 % 6] : random.next();
  }
  const double step = std::ldexp(1.0, 1 - ((1 << (type.exponent_bits - 1)) - 1));
  if (r % 8 < 5) {
    const double ends[] = {0.0, 0.0, 0.0, step, step / 2, 1.0, 1e300, 3.0, INFINITY, NAN};
    return oracle::encode(type, r & 1 << 20 ? -ends[r / 8 % 10] : ends[r / 8 % 10]);
  }
  const double mantissa = 1.0 + static_cast<double>(random.next() >> 11) * 0x1p-53;
  const int exponent = static_cast<int>(r >> 8 & 7) - 4;
  const double value = std::ldexp(mantissa, exponent);
  return oracle::encode(type, (r & 16 ? -value : value) * (r >> 16 & 15 ? 1 : step));
}

std::vector<Bytes> random_elements(DType dtype, std::size_t count, Random& random) {
  const oracle::Type type = oracle::type_of(dtype);
  std::vector<Bytes> data(count * dtype_size(dtype));
  for (std::size_t at = 0; at < data.size(); at += type.part_bytes) {
    oracle::write_bits(&data[at], type.part_bytes, random_part(type, random));
  }
  return data;
}

// ---- the comparer -------------------------------------------------------------------------------

struct Case {
  DType dtype;
  RedOp op;
  std::uint32_t divisor;
  std::vector<std::vector<Bytes>> inputs;  // one a source, `count` elements each
  std::size_t count;
  std::vector<Bytes> expected;
};

Case make_case(DType dtype, RedOp op, std::uint32_t divisor,
               std::vector<std::vector<Bytes>> inputs) {
  const std::size_t size = dtype_size(dtype);
  Case c{dtype, op, divisor, std::move(inputs), 0, {}};
  c.count = c.inputs[0].size() / size;
  c.expected.resize(c.count * size);
  std::vector<const Bytes*> srcs;
  for (const auto& input : c.inputs) srcs.push_back(input.data());
  for (std::size_t i = 0; i < c.count; ++i) {
    oracle::reduce_element(dtype, op, srcs, i, divisor, &c.expected[i * size]);
  }
  return c;
}

Case random_case(DType dtype, RedOp op, std::uint32_t divisor, std::size_t n_srcs,
                 std::size_t count, Random& random) {
  std::vector<std::vector<Bytes>> inputs;
  for (std::size_t s = 0; s < n_srcs; ++s) inputs.push_back(random_elements(dtype, count, random));
  return make_case(dtype, op, divisor, std::move(inputs));
}

constexpr int kApart = -1;

// Runs `kernel` with every array `offset` bytes off alignment and dst on top of source `alias`.
// Gives the first wrong element, or -1; -2 if bytes beside dst changed.
long first_difference(ReduceKernel kernel, const Case& c, std::size_t offset, int alias) {
  constexpr Bytes kCanary = 0xa5;
  const std::size_t bytes = c.expected.size();
  std::vector<std::vector<Bytes>> arrays;
  for (const auto& input : c.inputs) {
    arrays.emplace_back(offset + bytes + 64, kCanary);
    if (bytes != 0) std::memcpy(arrays.back().data() + offset, input.data(), bytes);
  }
  std::vector<Bytes> apart(offset + bytes + 64, kCanary);
  std::vector<const void*> srcs;
  for (const auto& array : arrays) srcs.push_back(array.data() + offset);
  std::vector<Bytes>& out = alias == kApart ? apart : arrays[static_cast<std::size_t>(alias)];
  kernel(out.data() + offset, srcs.data(), static_cast<std::uint32_t>(srcs.size()), c.count,
         c.divisor);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if ((i < offset || i >= offset + bytes) && out[i] != kCanary) return -2;
  }
  const std::size_t size = dtype_size(c.dtype);
  for (std::size_t i = 0; i < c.count; ++i) {
    if (!oracle::same(c.dtype, &out[offset + i * size], &c.expected[i * size])) {
      return static_cast<long>(i);
    }
  }
  return -1;
}

void check_on_every_isa(const Case& c) {
  const int n = static_cast<int>(c.inputs.size());
  std::vector<int> aliases = {kApart, 0};
  if (n > 1) aliases.push_back(n - 1);
  for (const ReduceTable* const* table = runnable_reduce_tables(); *table != nullptr; ++table) {
    const ReduceKernel kernel = (*table)->at[static_cast<int>(c.dtype)][static_cast<int>(c.op)];
    for (const int alias : aliases) {
      for (const std::size_t offset : {std::size_t{0}, std::size_t{1}}) {
        const long at = first_difference(kernel, c, offset, alias);
        CHECK(at == -1,
              "(%s %s %s: %d sources, %zu elements, divisor %u, offset %zu, alias %d: %ld)",
              (*table)->isa, dtype_name(c.dtype), redop_name(c.op), n, c.count, c.divisor, offset,
              alias, at);
      }
    }
  }
}

// ---- planted faults -----------------------------------------------------------------------------

template <class T>
T at(const void* const* srcs, std::size_t s, std::size_t i) {
  T x;
  std::memcpy(&x, static_cast<const Bytes*>(srcs[s]) + i * sizeof(T), sizeof(T));
  return x;
}

template <class T>
void put(void* dst, std::size_t i, T x) {
  std::memcpy(static_cast<Bytes*>(dst) + i * sizeof(T), &x, sizeof(T));
}

void cuts_instead_of_rounding(void* dst, const void* const* srcs, std::uint32_t n,
                              std::size_t count, std::uint32_t) {
  for (std::size_t i = 0; i < count; ++i) {
    float sum = to_float(at<BFloat16>(srcs, 0, i));
    for (std::uint32_t s = 1; s < n; ++s) sum += to_float(at<BFloat16>(srcs, s, i));
    put(dst, i, static_cast<std::uint16_t>(bit_cast<std::uint32_t>(sum) >> 16));
  }
}

void rounds_every_addition(void* dst, const void* const* srcs, std::uint32_t n, std::size_t count,
                           std::uint32_t) {
  for (std::size_t i = 0; i < count; ++i) {
    auto sum = at<Float16>(srcs, 0, i);
    for (std::uint32_t s = 1; s < n; ++s) {
      sum = from_float<Float16>(to_float(sum) + to_float(at<Float16>(srcs, s, i)));
    }
    put(dst, i, sum);
  }
}

void adds_in_descending_order(void* dst, const void* const* srcs, std::uint32_t n,
                              std::size_t count, std::uint32_t) {
  for (std::size_t i = 0; i < count; ++i) {
    float sum = at<float>(srcs, n - 1, i);
    for (std::uint32_t s = n - 1; s-- > 0;) sum += at<float>(srcs, s, i);
    put(dst, i, sum);
  }
}

void takes_zeros_as_equal(void* dst, const void* const* srcs, std::uint32_t n, std::size_t count,
                          std::uint32_t) {
  for (std::size_t i = 0; i < count; ++i) {
    double least = at<double>(srcs, 0, i);
    for (std::uint32_t s = 1; s < n; ++s) {
      const double x = at<double>(srcs, s, i);
      if (x < least || x != x) least = x;
    }
    put(dst, i, least);
  }
}

void fuses_multiply_and_add(void* dst, const void* const* srcs, std::uint32_t n, std::size_t count,
                            std::uint32_t) {
  for (std::size_t i = 0; i < count; ++i) {
    auto a = at<Complex<float>>(srcs, 0, i);
    for (std::uint32_t s = 1; s < n; ++s) {
      const auto b = at<Complex<float>>(srcs, s, i);
      a = {std::fma(a.re, b.re, -(a.im * b.im)), std::fma(a.re, b.im, a.im * b.re)};
    }
    put(dst, i, a);
  }
}

void writes_past_the_end(void* dst, const void* const* srcs, std::uint32_t, std::size_t count,
                         std::uint32_t) {
  std::memmove(dst, srcs[0], count);
  static_cast<Bytes*>(dst)[count] = 0;
}

void test_planted_faults() {
  Random random{1};
  const auto caught = [&](ReduceKernel fault, DType dtype, RedOp op, std::size_t n_srcs) {
    const Case c = random_case(dtype, op, 0, n_srcs, 4000, random);
    return first_difference(fault, c, 0, kApart) != -1;
  };
  CHECK(caught(cuts_instead_of_rounding, DType::kBFloat16, RedOp::kSum, 2));
  CHECK(caught(rounds_every_addition, DType::kFloat16, RedOp::kSum, 3));
  CHECK(caught(adds_in_descending_order, DType::kFloat32, RedOp::kSum, 3));
  CHECK(caught(takes_zeros_as_equal, DType::kFloat64, RedOp::kMin, 2));
  CHECK(caught(fuses_multiply_and_add, DType::kComplex64, RedOp::kProduct, 2));
  CHECK(caught(writes_past_the_end, DType::kUInt8, RedOp::kSum, 1));
  // Where each fault does not show, it must pass: the comparer does not cry wolf.
  CHECK(!caught(rounds_every_addition, DType::kFloat16, RedOp::kSum, 2));
  CHECK(!caught(adds_in_descending_order, DType::kFloat32, RedOp::kSum, 2));
}

// ---- the checks ---------------------------------------------------------------------------------

void test_every_pair() {
  Random random{2};
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    for (const RedOp op : kOps) {
      if (!reduce_supported(dtype, op)) continue;
      for (const std::size_t n_srcs : {1, 2, 3, 4, 5, 8}) {
        for (const std::size_t count : {0, 1, 7, 31, 64, 1013}) {
          check_on_every_isa(random_case(dtype, op, 0, n_srcs, count, random));
          if (op != RedOp::kAvg) continue;
          const auto all = static_cast<std::uint32_t>(n_srcs);
          check_on_every_isa(random_case(dtype, op, all, n_srcs, count, random));
          check_on_every_isa(random_case(dtype, op, 7, n_srcs, count, random));
        }
      }
      // Over the edge of the block of partial results, whatever the element's size.
      check_on_every_isa(random_case(dtype, op, 5, 5, 8192 / dtype_size(dtype) + 3, random));
    }
  }
  check_on_every_isa(random_case(DType::kFloat16, RedOp::kSum, 0, 64, 2500, random));
  check_on_every_isa(random_case(DType::kInt64, RedOp::kAvg, 65, 65, 700, random));
}

// float16 and bfloat16: every code beside many others; float8: every pair.
void test_all_codes_of_narrow_floats() {
  Random random{3};
  for (const DType dtype :
       {DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3fn, DType::kFloat8E5M2}) {
    const int bytes = static_cast<int>(dtype_size(dtype));
    std::vector<Bytes> codes(static_cast<std::size_t>(bytes) << 16), others = codes;
    for (int round = 0; round < (bytes == 1 ? 1 : 6); ++round) {
      for (std::uint64_t i = 0; i < 65536; ++i) {
        oracle::write_bits(&codes[i * bytes], bytes, i);
        oracle::write_bits(&others[i * bytes], bytes, bytes == 1 ? i >> 8 : random.next());
      }
      for (const RedOp op : {RedOp::kSum, RedOp::kProduct, RedOp::kMin, RedOp::kMax}) {
        check_on_every_isa(make_case(dtype, op, 0, {codes, others}));
      }
    }
    check_on_every_isa(make_case(dtype, RedOp::kSum, 0, {codes}));
    check_on_every_isa(make_case(dtype, RedOp::kAvg, 3, {codes}));
  }
}

template <class T>
std::uint64_t bits_of(T x) {
  return x.bits;
}

bool same_code(DType dtype, std::uint64_t a, std::uint64_t b) {
  Bytes a_bytes[8], b_bytes[8];
  oracle::write_bits(a_bytes, 8, a);
  oracle::write_bits(b_bytes, 8, b);
  return oracle::same(dtype, a_bytes, b_bytes);
}

template <class T>
void test_conversions(DType dtype) {
  const oracle::Type type = oracle::type_of(dtype);
  const auto check_encode = [&](float value) {
    const std::uint64_t got = bits_of(from_float<T>(value)), want = oracle::encode(type, value);
    CHECK(same_code(dtype, got, want), "(%s of %a: %llx, not %llx)", dtype_name(dtype), value,
          static_cast<unsigned long long>(got), static_cast<unsigned long long>(want));
  };
  for (std::uint32_t code = 0; code < 1u << (8 * sizeof(T)); ++code) {
    const double want = oracle::decode(type, code);
    const float got = to_float(T{static_cast<decltype(T::bits)>(code)});
    CHECK(
        std::isnan(want) ? std::isnan(got) : got == want && std::signbit(got) == std::signbit(want),
        "(%s code %x: %a, not %a)", dtype_name(dtype), code, got, want);
    if (std::isnan(want)) {
      check_encode(got);
      continue;
    }
    // The number itself, the tie between it and the next, and the floats on either side of both.
    const double next = oracle::decode(type, code + 1);
    for (const double value : {want, std::isfinite(next) ? want / 2 + next / 2 : want * 1.0625}) {
      const auto exact = static_cast<float>(value);
      check_encode(exact);
      check_encode(std::nextafter(exact, INFINITY));
      check_encode(std::nextafter(exact, -INFINITY));
    }
  }
  for (std::uint64_t bits = 0; bits < 1ull << 32; bits += 2731) {
    check_encode(bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
}

void test_refusals() {
  for (int d = 0; d <= kDTypeCount; ++d) {
    for (int o = 0; o <= kRedOpCount; ++o) {
      const auto dtype = static_cast<DType>(d);
      const auto op = static_cast<RedOp>(o);
      const Kind kind = d < kDTypeCount ? oracle::type_of(dtype).kind : Kind::kMoveOnly;
      const bool real = kind == Kind::kFloat || kind == Kind::kComplex;
      bool want = kind != Kind::kMoveOnly && o < static_cast<int>(RedOp::kPremulSum);
      if (kind == Kind::kBool && op == RedOp::kAvg) want = false;
      if (kind == Kind::kComplex && (op == RedOp::kMin || op == RedOp::kMax)) want = false;
      if (real && (op == RedOp::kBand || op == RedOp::kBor || op == RedOp::kBxor)) want = false;
      CHECK(reduce_supported(dtype, op) == want, "(%s %s)", dtype_name(dtype), redop_name(op));
      CHECK((reduce_kernel(dtype, op) != nullptr) == want);
      CHECK((reduce_refusal(dtype, op) == nullptr) == want);
      if (d == kDTypeCount || o == kRedOpCount) continue;
      for (const ReduceTable* const* t = runnable_reduce_tables(); *t != nullptr; ++t) {
        CHECK(((*t)->at[d][o] != nullptr) == want, "(%s)", (*t)->isa);
      }
    }
  }
  CHECK(std::string_view(dtype_name(static_cast<DType>(kDTypeCount))) == "unknown");
  CHECK(std::string_view(redop_name(static_cast<RedOp>(kRedOpCount))) == "unknown");
}

// ---- other modes --------------------------------------------------------------------------------

template <class Run>
double best_seconds(Run&& run) {
  using Clock = std::chrono::steady_clock;
  double best = 1e9;
  for (int repeat = 0; repeat < 30; ++repeat) {
    const auto start = Clock::now();
    for (int i = 0; i < 20; ++i) run();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count() / 20);
  }
  return best;
}

int bench() {
  constexpr std::size_t kBytes = 256 << 10;
  std::vector<Bytes> a(kBytes, 1), b(kBytes, 2), c(kBytes);
  const void* srcs[] = {a.data(), b.data()};
  std::printf("GB/s, 2 sources of 256 KB, SUM (bytes read plus written)\n%-16s", "");
  for (const ReduceTable* const* t = runnable_reduce_tables(); *t != nullptr; ++t) {
    std::printf("%10s", (*t)->isa);
  }
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    if (!reduce_supported(dtype, RedOp::kSum)) continue;
    std::printf("\n%-16s", dtype_name(dtype));
    for (const ReduceTable* const* t = runnable_reduce_tables(); *t != nullptr; ++t) {
      const ReduceKernel kernel = (*t)->at[d][static_cast<int>(RedOp::kSum)];
      const double s =
          best_seconds([&] { kernel(c.data(), srcs, 2, kBytes / dtype_size(dtype), 0); });
      std::printf("%10.1f", 3 * kBytes / s / 1e9);
    }
  }
  const double s = best_seconds([&] { std::memcpy(c.data(), a.data(), kBytes); });
  std::printf("\n%-16s%10.1f\n", "(memcpy)", 2 * kBytes / s / 1e9);
  return 0;
}

template <class T>
int convert(bool encode) {
  if (!encode) {
    for (std::uint32_t code = 0; code < 1u << (8 * sizeof(T)); ++code) {
      const float value = to_float(T{static_cast<decltype(T::bits)>(code)});
      std::fwrite(&value, sizeof(value), 1, stdout);
    }
    return 0;
  }
  for (float value; std::fread(&value, sizeof(value), 1, stdin) == 1;) {
    const T code = from_float<T>(value);
    std::fwrite(&code, sizeof(code), 1, stdout);
  }
  return 0;
}

int convert(std::string_view dtype, bool encode) {
  if (dtype == "float16") return convert<Float16>(encode);
  if (dtype == "bfloat16") return convert<BFloat16>(encode);
  if (dtype == "float8_e4m3fn") return convert<Float8E4M3fn>(encode);
  if (dtype == "float8_e5m2") return convert<Float8E5M2>(encode);
  return 2;
}

int print_isa() {
  if (reduce_isa_error() != nullptr) {
    std::puts(reduce_isa_error());
    return 3;
  }
  std::puts(reduce_isa());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  if (mode == "--isa") return print_isa();
  if (mode == "--bench") return bench();
  if ((mode == "--decode" || mode == "--encode") && argc > 2) {
    return convert(argv[2], mode == "--encode");
  }
  if (!mode.empty()) return 2;
  test_planted_faults();
  test_refusals();
  test_conversions<Float16>(DType::kFloat16);
  test_conversions<BFloat16>(DType::kBFloat16);
  test_conversions<Float8E4M3fn>(DType::kFloat8E4M3fn);
  test_conversions<Float8E5M2>(DType::kFloat8E5M2);
  test_all_codes_of_narrow_floats();
  test_every_pair();
  return check_status();
}
