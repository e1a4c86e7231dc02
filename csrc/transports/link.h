// The transport contract: a link is a ring of k slots between one sending and one receiving rank on
// one channel. Shared memory maps it into both processes; a network transport keeps one ring at
// each end and moves slots between them. The executor sees only this file.
#pragma once

#include <cstdint>

#include "base/atomic.h"
#include "base/platform.h"
#include "base/wait.h"

namespace hybridcomm {

inline constexpr uint32_t kMaxSlots = 16;

// The shared half of a link.
//
//   layout    three cache lines: the sender's counter, the receiver's counter, the payload sizes.
//             Slot i lives at slots + (i % k) * slot_bytes, elsewhere in the mapping.
//   ordering  the sender fills slot `head`, writes bytes[head % k], then publishes head + 1; the
//             receiver observes head, reads the slot, then publishes tail + 1, which gives the slot
//             back. Each word has one writer.
//   lifetime  the counters live as long as the group and go on from operation to operation; nothing
//             resets them, so no reset can race. A group in which an operation failed is never used
//             again, so a slot left half way is never read.
//   overflow  64-bit counts of slots: 2^64 slots of one byte would take centuries
struct LinkControl {
  alignas(kCacheLine) uint64_t head;  // slots published
  // Bytes that the sender will send in an all-to-all; entry s % 2 for operation s. Written before
  // its header is published and read after, like the header (transports/shm/layout.h).
  uint64_t promised[2];
  alignas(kCacheLine) uint64_t tail;  // slots given back
  uint64_t expected[2];               // bytes that the receiver expects; else as `promised`
  alignas(kCacheLine) uint32_t bytes[kMaxSlots];
};
static_assert(sizeof(LinkControl) == 3 * kCacheLine);

// The sender's end. One thread (on a device: one block) uses it at a time.
struct LinkOut {
  LinkControl* control = nullptr;
  std::byte* slots = nullptr;
  Bell* bell = nullptr;  // where the receiver sleeps
  uint64_t head = 0;     // our copy of control->head
  uint64_t tail = 0;     // the last control->tail we saw
  uint64_t slot_bytes = 0;
  uint32_t count = 0;  // k

  // True if a slot is free. Looks at shared memory only when the last look is used up.
  HC_HOST_DEVICE bool ready() {
    if (head - tail < count) return true;
    tail = observe(control->tail);
    return head - tail < count;
  }
  HC_HOST_DEVICE std::byte* slot() const { return slots + (head % count) * slot_bytes; }
  // Hands the slot, with `size` bytes in it, to the receiver.
  HC_HOST_DEVICE void publish_slot(uint32_t size) {
    store_relaxed(control->bytes[head % count], size);
    publish(control->head, ++head);
    ring(*bell);
  }
};

// The receiver's end.
struct LinkIn {
  LinkControl* control = nullptr;
  const std::byte* slots = nullptr;
  Bell* bell = nullptr;  // where the sender sleeps
  uint64_t tail = 0;     // our copy of control->tail
  uint64_t head = 0;     // the last control->head we saw
  uint64_t slot_bytes = 0;
  uint32_t count = 0;

  HC_HOST_DEVICE bool ready() {
    if (head != tail) return true;
    head = observe(control->head);
    return head != tail;
  }
  HC_HOST_DEVICE const std::byte* slot() const { return slots + (tail % count) * slot_bytes; }
  // What the sender says it put there. The receiver compares it with what the program says and
  // never uses it as a length.
  HC_HOST_DEVICE uint32_t size() const { return load_relaxed(control->bytes[tail % count]); }
  HC_HOST_DEVICE void release_slot() {
    publish(control->tail, ++tail);
    ring(*bell);
  }
};

}  // namespace hybridcomm
