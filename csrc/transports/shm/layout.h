// What a group's shared memory holds, byte for byte. One memfd per group, made by its rank 0.
//
//   offset                                contents
//   0                                     RegionHeader, one page
//   control_offset()                      RankControl[world]
//   links_offset()                        LinkControl[channels][from][to]
//   slots_offset()                        slots[channels][from][to][k][slot_bytes], page-aligned
//
// The diagonal (from == to) is never touched, so it costs address space but no memory; indexing
// stays a multiplication. Pages come into being when first written: a link that no program uses
// costs nothing.
#pragma once

#include <cstdint>

#include "base/platform.h"
#include "base/wait.h"
#include "transports/link.h"

namespace hybridcomm::shm {

inline constexpr uint64_t kMagic = 0x314d4d4f43425948;  // "HYBCOMM1", little-endian
inline constexpr uint32_t kLayoutVersion = 1;
inline constexpr uint64_t kPage = 4096;
inline constexpr uint32_t kMaxWorld = 1024;
inline constexpr uint32_t kMaxChannels = 64;

// What all ranks of a group must agree on before there is a region; compared when they join.
struct Shape {
  uint32_t world = 0;
  uint32_t channels = 1;
  uint32_t slots = 0;       // k, of every link
  uint64_t slot_bytes = 0;  // multiple of kCacheLine

  bool operator==(const Shape&) const = default;
};

// The first cause: why the group failed, as one word, so that a rank killed while it reports cannot
// leave half a report.
//
//   bits 0–7 ErrorKind, 8–31 the rank to blame + 1, 32–55 the rank that reported it + 1, 56–63 zero
//
// Written once, by compare-and-swap from 0. Every later error of the group names this cause.
struct Cause {
  uint64_t word = 0;
};

// Page 0. Written by rank 0 before any other rank maps it, and constant from then on, but for
// `cause`.
struct RegionHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t header_bytes;
  Shape shape;
  uint64_t region_bytes;
  uint64_t nonce;  // read back by each joining rank: proof that the memory is one
  alignas(kCacheLine) Cause cause;
};
static_assert(sizeof(RegionHeader) <= kPage);

// What a rank is about to do: published before its first step, read by every other rank before
// theirs. It lies at the same place whatever the operation, so that a mismatch is an error instead
// of a hang.
//
//   ordering  the other fields are written, then `sequence` is published
//   lifetime  entry s % 2 is overwritten at s + 2, which its owner reaches only after every rank
//             published s + 1, hence finished s, hence read this entry
//   overflow  sequence counts from 1 in 64 bits
struct alignas(kCacheLine) OperationHeader {
  uint64_t sequence;
  uint64_t count;       // elements of this rank's contribution
  uint32_t root;        // kNoRoot if the collective has none
  uint16_t collective;  // Collective
  uint8_t dtype;        // DType
  uint8_t redop;        // RedOp; 0 for collectives that do not reduce
  char algorithm[32];   // padded with zeros; a different choice is a mismatch
  uint64_t splits;      // digest of the lengths of an uneven call; 0 if it is even
};
static_assert(sizeof(OperationHeader) == kCacheLine);

inline constexpr uint32_t kNoRoot = 0xffffffffu;

enum class RankState : uint32_t {
  kAbsent = 0,  // has not joined
  kJoined = 1,
  kLeft = 2,  // destroyed the group
};

// What one rank says of itself; only that rank writes it (but for the bell).
//
//   `completed` is published when an operation is done on this rank. A rank that is dead or gone
//   and has not completed the operation under way is lost to it; one that has, is not missed.
struct RankControl {
  Bell bell;
  alignas(kCacheLine) uint32_t state;  // RankState
  uint32_t phase;                      // Phase, for diagnosis: what a stuck or dead rank was doing
  uint64_t completed;                  // sequence of its last finished operation
  uint64_t proof;                      // echo of a number that it also sent over the socket
  OperationHeader board[2];
};
static_assert(sizeof(RankControl) == 4 * kCacheLine);

constexpr uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

constexpr uint64_t control_offset() { return kPage; }

constexpr uint64_t links_offset(const Shape& shape) {
  return round_up(control_offset() + shape.world * sizeof(RankControl), kPage);
}

constexpr uint64_t link_count(const Shape& shape) {
  return uint64_t{shape.channels} * shape.world * shape.world;
}

constexpr uint64_t slots_offset(const Shape& shape) {
  return round_up(links_offset(shape) + link_count(shape) * sizeof(LinkControl), kPage);
}

constexpr uint64_t ring_bytes(const Shape& shape) {
  return round_up(shape.slots * shape.slot_bytes, kPage);
}

constexpr uint64_t region_bytes(const Shape& shape) {
  return slots_offset(shape) + link_count(shape) * ring_bytes(shape);
}

constexpr uint64_t link_index(const Shape& shape, uint32_t channel, uint32_t from, uint32_t to) {
  return (uint64_t{channel} * shape.world + from) * shape.world + to;
}

}  // namespace hybridcomm::shm
