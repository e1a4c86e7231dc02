// The host reduction loops: included once by each reduce_<isa>.cpp, and by nothing else, with
//   HC_VECTOR_BYTES  the size of the registers
//   HC_HALF_RULE     the hardware's float16 conversion, if there is one (see reduce_avx2.cpp)
//
// The linker keeps one copy of an inline function and must not keep the AVX-512 one for all. So
// everything here is in an anonymous namespace, the element rules are always inlined, nothing of
// the standard library is called, and its headers come before the including file's target pragma.
// Our own come after it: a function's vectors are split into those its target has before it is
// inlined.
//
// The loops are plain and the compiler vectorises them (-O3). Only narrow floats get help, by rules
// that take kLanes elements at a time as `Lanes`.

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

// The arithmetic of narrow floats. The compiler would change the number of elements of a vector at
// every conversion; instead a vector of 32-bit words is read as kPerWord vectors of one code each.
template <RedOp kOp, class T>
struct WordRule : Reduction<kOp, T> {
  using Format = typename T::Format;
  typedef float Floats __attribute__((vector_size(HC_VECTOR_BYTES)));
  using Words = IntOf<Floats>;
  static constexpr int kPerWord = 4 / sizeof(T), kBits = 8 * sizeof(T);
  static constexpr std::size_t kLanes = HC_VECTOR_BYTES / sizeof(T);
  struct Lanes {
    Floats at[kPerWord];
  };

  static HC_ELEMENT void load_lanes(Lanes& lanes, const Bytes* from, T) {
    const auto words = element_at<Words>(from, 0);
#pragma GCC unroll 4
    for (int k = 0; k < kPerWord; ++k) {
      lanes.at[k] = Format::template to_float<Floats>(words >> kBits * k);
    }
  }
  static HC_ELEMENT void load_lanes(Lanes& lanes, const Bytes* from, float) {
    __builtin_memcpy(&lanes, from, sizeof(lanes));
  }
  static HC_ELEMENT void store_lanes(Bytes* to, const Lanes& lanes, T) {
    Words words = {};
#pragma GCC unroll 4
    for (int k = 0; k < kPerWord; ++k) {
      const Words codes = Format::from_float(lanes.at[k]);
      const bool last = k + 1 == kPerWord;  // nothing lies above it
      words |= (last ? codes : codes & ((1 << kBits) - 1)) << kBits * k;
    }
    __builtin_memcpy(to, &words, sizeof(words));
  }
  static HC_ELEMENT void store_lanes(Bytes* to, const Lanes& lanes, float) {
    __builtin_memcpy(to, &lanes, sizeof(lanes));
  }
  static HC_ELEMENT void combine_lanes(Lanes& a, const Lanes& b) {
#pragma GCC unroll 4
    for (int k = 0; k < kPerWord; ++k) a.at[k] = detail::add_or_multiply<kOp>(a.at[k], b.at[k]);
  }
  static HC_ELEMENT void finish_lanes(Lanes& a, std::uint32_t divisor) {
#pragma GCC unroll 4
    for (int k = 0; k < kPerWord; ++k) a.at[k] /= static_cast<float>(divisor);
  }
};

// A pass is dst[i] = first[i] op second[i] op third[i], of which the first kSources exist. `dst`
// may be any of them: element i is read before it is written and by nobody else, which is what
// ivdep tells the compiler.
template <class Rule, class T, class Out, class First, int kSources, bool kFinish>
void fold(Bytes* dst, const Bytes* first, const Bytes* second, const Bytes* third,
          std::size_t count, std::uint32_t divisor) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    typename Rule::Acc acc = load<Rule, First>(first, i);
    if constexpr (kSources >= 2) acc = Rule::combine(acc, load<Rule, T>(second, i));
    if constexpr (kSources >= 3) acc = Rule::combine(acc, load<Rule, T>(third, i));
    if constexpr (kFinish) acc = Rule::finish(acc, divisor);
    store<Rule, Out>(dst, i, acc);
  }
}

// The same by Lanes. A rest goes the same way once more, through copies of full size. Accumulators
// lie in the order of the lanes, so a stream of them is whole groups of kLanes.
template <class Rule, class T, class Out, class First, int kSources, bool kFinish>
  requires requires { typename Rule::Lanes; }
void fold(Bytes* dst, const Bytes* first, const Bytes* second, const Bytes* third,
          std::size_t count, std::uint32_t divisor) {
  constexpr std::size_t kLanes = Rule::kLanes;
  constexpr bool kOutIsAcc = !std::is_same_v<Out, T>, kFirstIsAcc = !std::is_same_v<First, T>;
  Bytes out[kLanes * sizeof(Out)], a[kLanes * sizeof(First)] = {};
  Bytes b[kLanes * sizeof(T)] = {}, c[kLanes * sizeof(T)] = {};
  Bytes* rest_dst = nullptr;
  std::size_t rest = 0;
  for (;;) {
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      typename Rule::Lanes acc, next;
      Rule::load_lanes(acc, first + i * sizeof(First), First{});
      if constexpr (kSources >= 2) {
        Rule::load_lanes(next, second + i * sizeof(T), T{});
        Rule::combine_lanes(acc, next);
      }
      if constexpr (kSources >= 3) {
        Rule::load_lanes(next, third + i * sizeof(T), T{});
        Rule::combine_lanes(acc, next);
      }
      if constexpr (kFinish) Rule::finish_lanes(acc, divisor);
      Rule::store_lanes(dst + i * sizeof(Out), acc, Out{});
    }
    if (rest != 0) {
      __builtin_memcpy(rest_dst, out, (kOutIsAcc ? kLanes : rest) * sizeof(Out));
      return;
    }
    if (i == count) return;
    rest = count - i;
    rest_dst = dst + i * sizeof(Out);
    __builtin_memcpy(a, first + i * sizeof(First), (kFirstIsAcc ? kLanes : rest) * sizeof(First));
    if constexpr (kSources >= 2) __builtin_memcpy(b, second + i * sizeof(T), rest * sizeof(T));
    if constexpr (kSources >= 3) __builtin_memcpy(c, third + i * sizeof(T), rest * sizeof(T));
    dst = out, first = a, second = b, third = c;
    count = kLanes;
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
  if constexpr (requires { typename Rule::Lanes; }) static_assert(kBlock % Rule::kLanes == 0);
  Bytes* dst = static_cast<Bytes*>(dst_);
  const auto src = [srcs](std::uint32_t s) { return static_cast<const Bytes*>(srcs[s]); };
  count *= kParts;
  switch (n_srcs) {
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
  } else if constexpr (NarrowFloat<T> && kIsArithmetic<kOp>) {
    return &reduce<WordRule<kOp, T>, T, kIsAvg, kParts>;
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
