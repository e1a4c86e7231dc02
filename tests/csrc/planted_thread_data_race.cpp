// A race on purpose: a flag published with plain stores. ThreadSanitizer must report it.
#include <thread>

#include "base/wait.h"

namespace {

struct Slot {
  int payload = 0;
  uint32_t full = 0;
};

}  // namespace

int main() {
  Slot slot;
  std::thread sender([&slot] {
    slot.payload = 7;
    slot.full = 1;  // the fault: this should be publish(slot.full, 1u)
  });
  while (hybridcomm::observe(slot.full) == 0) hybridcomm::yield_core(false);
  const int payload = slot.payload;
  sender.join();
  return payload == 7 ? 0 : 1;
}
