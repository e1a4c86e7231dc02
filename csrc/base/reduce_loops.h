// The host reduction loops: included once by each reduce_<isa>.cpp, after its target pragma, and by
// nothing else. Everything here is in an anonymous namespace, because the linker keeps one copy of
// an inline function and must not keep the AVX-512 one for all. For the same reason nothing of the
// standard library is called, and headers are included before the pragma.
//
// The loops are plain and the compiler vectorises them (-O3). What it does not find by itself is the
// hardware's float16 conversion: the including file may define HC_HALF_RULE, a rule with its own
// load and store and with `Lanes`, a vector of kLanes floats (see reduce_avx2.cpp).

namespace hybridcomm {
namespace {

using Bytes = unsigned char;

// Memory may be unaligned and has no declared type: these copies become plain moves.
template <class T>
HC_ELEMENT T element_at(const Bytes* base, std::size_t i) {
  T element;
  __builtin_memcpy(&element, base + i * sizeof(T), sizeof(T));
  return element;
}

// A stream is an array of elements or, between two passes, of accumulators. Where both are the same
// type, load and store change nothing.
template <class Rule, class Stream>
HC_ELEMENT typename Rule::Acc load(const Bytes* base, std::size_t i) {
  const auto x = element_at<Stream>(base, i);
  if constexpr (std::is_same_v<Stream, typename Rule::Acc>) {
    return x;
  } else {
    return Rule::load(x);
  }
}

template <class Rule, class Stream>
HC_ELEMENT void store(Bytes* base, std::size_t i, typename Rule::Acc acc) {
  Stream x;
  if constexpr (std::is_same_v<Stream, typename Rule::Acc>) {
    x = acc;
  } else {
    x = Rule::store(acc);
  }
  __builtin_memcpy(base + i * sizeof(Stream), &x, sizeof(Stream));
}

// One pass: dst[i] = first[i] op second[i] op third[i], of which the first kSources exist. `dst` may
// be any of them: element i is read before it is written and by nobody else, which is what ivdep
// tells the compiler.
template <class Rule, class T, class Out, class First, int kSources, bool kFinish>
void fold(Bytes* dst, const Bytes* first, const Bytes* second, const Bytes* third,
          std::size_t count, std::uint32_t divisor) {
  std::size_t i = 0;
  if constexpr (requires { Rule::kLanes; }) {
    for (; i + Rule::kLanes <= count; i += Rule::kLanes) {
      typename Rule::Lanes acc = Rule::load_lanes(first + i * sizeof(First), First{});
      if constexpr (kSources >= 2) {
        acc = Rule::combine(acc, Rule::load_lanes(second + i * sizeof(T), T{}));
      }
      if constexpr (kSources >= 3) {
        acc = Rule::combine(acc, Rule::load_lanes(third + i * sizeof(T), T{}));
      }
      if constexpr (kFinish) acc = Rule::finish(acc, divisor);
      Rule::store_lanes(dst + i * sizeof(Out), acc, Out{});
    }
  }
#pragma GCC ivdep
  for (; i < count; ++i) {
    typename Rule::Acc acc = load<Rule, First>(first, i);
    if constexpr (kSources >= 2) acc = Rule::combine(acc, load<Rule, T>(second, i));
    if constexpr (kSources >= 3) acc = Rule::combine(acc, load<Rule, T>(third, i));
    if constexpr (kFinish) acc = Rule::finish(acc, divisor);
    store<Rule, Out>(dst, i, acc);
  }
}

// Partial results of many sources stay in the first-level cache beside what streams past them.
inline constexpr std::size_t kPartialBytes = 8192;

// Up to three sources go through registers. More go block by block: a first pass of two or three
// sources, so that an even number remains, and then two sources a pass.
template <class Rule, class T, bool kFinish, std::size_t kParts>
void reduce(void* dst_, const void* const* srcs, std::uint32_t n_srcs, std::size_t count,
            std::uint32_t divisor) {
  using Partial = std::conditional_t<Rule::kPartialIsElement, T, typename Rule::Acc>;
  constexpr std::size_t kBlock = kPartialBytes / sizeof(Partial);
  Bytes* dst = static_cast<Bytes*>(dst_);
  const auto src = [srcs](std::uint32_t s) { return static_cast<const Bytes*>(srcs[s]); };
  count *= kParts;
  switch (n_srcs) {
    case 0: return;
    case 1: return fold<Rule, T, T, T, 1, kFinish>(dst, src(0), {}, {}, count, divisor);
    case 2: return fold<Rule, T, T, T, 2, kFinish>(dst, src(0), src(1), {}, count, divisor);
    case 3: return fold<Rule, T, T, T, 3, kFinish>(dst, src(0), src(1), src(2), count, divisor);
    default: break;
  }
  alignas(kCacheLine) Bytes sums[kPartialBytes];
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t n = count - begin < kBlock ? count - begin : kBlock;
    const auto at = [&](std::uint32_t s) { return src(s) + begin * sizeof(T); };
    std::uint32_t s = 2;
    if (n_srcs % 2 == 0) {
      fold<Rule, T, Partial, T, 2, false>(sums, at(0), at(1), {}, n, 0);
    } else {
      fold<Rule, T, Partial, T, 3, false>(sums, at(0), at(1), at(2), n, 0);
      s = 3;
    }
    for (; s + 2 < n_srcs; s += 2) {
      fold<Rule, T, Partial, Partial, 3, false>(sums, sums, at(s), at(s + 1), n, 0);
    }
    fold<Rule, T, T, Partial, 3, kFinish>(dst + begin * sizeof(T), sums, at(s), at(s + 1), n,
                                          divisor);
  }
}

// The loop that serves a pair. Pairs with the same arithmetic share one: integers of both signs,
// the bytes of a bitwise operation, the real and imaginary parts of a complex sum.
template <RedOp kOp, class T, std::size_t kParts = 1>
constexpr ReduceKernel kernel_for() {
  constexpr bool kIsAvg = kOp == RedOp::kAvg;
  if constexpr (std::is_integral_v<T> && kIsBitwise<kOp> && sizeof(T) > 1) {
    return kernel_for<kOp, std::uint8_t, sizeof(T)>();
  } else if constexpr (std::is_signed_v<T> && std::is_integral_v<T> && !kIsMinMax<kOp> && !kIsAvg) {
    return kernel_for<kOp, std::make_unsigned_t<T>, kParts>();
  } else if constexpr (std::is_same_v<T, Bool> && (kOp == RedOp::kSum || kOp == RedOp::kMax)) {
    return kernel_for<RedOp::kBor, T>();
  } else if constexpr (std::is_same_v<T, Bool> && (kOp == RedOp::kProduct || kOp == RedOp::kMin)) {
    return kernel_for<RedOp::kBand, T>();
  } else if constexpr (requires { typename T::Real; } && kOp != RedOp::kProduct) {
    return kernel_for<kOp, typename T::Real, 2>();
#if defined(HC_HALF_RULE)
  } else if constexpr (std::is_same_v<T, Float16> && kIsArithmetic<kOp>) {
    return &reduce<HC_HALF_RULE<kOp>, T, kIsAvg, kParts>;
#endif
  } else {
    return &reduce<Reduction<kOp, T>, T, kIsAvg, kParts>;
  }
}

// AVG of a value that a later step completes is SUM.
template <class T>
void avg(void* dst, const void* const* srcs, std::uint32_t n_srcs, std::size_t count,
         std::uint32_t divisor) {
  constexpr ReduceKernel kSum = kernel_for<RedOp::kSum, T>(), kAvg = kernel_for<RedOp::kAvg, T>();
  (divisor == 0 ? kSum : kAvg)(dst, srcs, n_srcs, count, divisor);
}

template <RedOp kOp, class T>
constexpr void fill(ReduceKernel (&row)[kRedOpCount]) {
  if constexpr (Reducible<kOp, T>) {
    ReduceKernel& kernel = row[static_cast<int>(kOp)];
    if constexpr (kOp == RedOp::kAvg) {
      kernel = &avg<T>;
    } else {
      kernel = kernel_for<kOp, T>();
    }
  }
}

consteval ReduceTable make_table(const char* isa) {
  ReduceTable table{isa, {}};
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    visit_dtype(static_cast<DType>(dtype), [&]<class T>(TypeTag<T>) {
      auto& row = table.at[dtype];
      fill<RedOp::kSum, T>(row);
      fill<RedOp::kAvg, T>(row);
      fill<RedOp::kProduct, T>(row);
      fill<RedOp::kMin, T>(row);
      fill<RedOp::kMax, T>(row);
      fill<RedOp::kBand, T>(row);
      fill<RedOp::kBor, T>(row);
      fill<RedOp::kBxor, T>(row);
    });
  }
  return table;
}

}  // namespace
}  // namespace hybridcomm
