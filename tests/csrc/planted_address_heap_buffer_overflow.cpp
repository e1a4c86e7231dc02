// One element too many on purpose: AddressSanitizer must report it.
#include <memory>

int main(int argc, char**) {
  const auto slots = std::make_unique<int[]>(4);
  for (int i = 0; i < 4 + argc; ++i) slots[i] = i;  // the fault: argc is 1
  return slots[0];
}
