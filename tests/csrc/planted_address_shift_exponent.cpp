// Undefined behaviour on purpose: UndefinedBehaviorSanitizer, which is built in with the address
// sanitizer, must report it.
int main(int argc, char**) {
  const int bits = 31 + argc;
  return (argc << bits) == 0 ? 0 : 1;  // the fault: a shift by the width of the type
}
