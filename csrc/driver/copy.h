// What memory gives at best: plain copying, to compare collectives with.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hybridcomm::driver {

enum class CopyKind {
  kPlain,        // the C library's memcpy
  kNonTemporal,  // stores that go past the caches, and need not read what they overwrite
};

// Throws CommError(kInvalid) if this processor's non-temporal stores are not known here.
void copy_bytes(CopyKind kind, std::byte* to, const std::byte* from, uint64_t bytes);

}  // namespace hybridcomm::driver
