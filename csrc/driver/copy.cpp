// Copying, plain and past the caches.
#include "driver/copy.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace hybridcomm::driver {
namespace {

#ifdef __SSE2__
void copy_past_caches(std::byte* to, const std::byte* from, uint64_t bytes) {
  constexpr uint64_t kLine = 64;
  const uint64_t head = std::min<uint64_t>(-reinterpret_cast<uintptr_t>(to) % kLine, bytes);
  std::memcpy(to, from, head);
  uint64_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(to + at);
    // All four loads first: the stores of a line then leave together.
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(to + at, from + at, bytes - at);
  _mm_sfence();
}
#else
void copy_past_caches(std::byte*, const std::byte*, uint64_t) {
  throw CommError(ErrorKind::kInvalid, "--stores: no non-temporal stores are known here");
}
#endif

}  // namespace

void copy_bytes(CopyKind kind, std::byte* to, const std::byte* from, uint64_t bytes) {
  if (kind == CopyKind::kPlain) {
    std::memcpy(to, from, bytes);
  } else {
    copy_past_caches(to, from, bytes);
  }
}

}  // namespace hybridcomm::driver
