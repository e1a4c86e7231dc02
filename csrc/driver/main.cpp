// hybridcomm-driver: runs flat programs with no Python and no torch. See --help.
#include <iostream>

#include "base/error.h"
#include "driver/modes.h"

int main(int argc, char** argv) {
  using namespace hybridcomm;
  try {
    const driver::Options options = driver::parse_options(argc, argv);
    if (options.mode == "kill") return driver::kill_mode(options);
    if (options.mode == "pace") return driver::pace_mode(options);
    if (options.mode == "copy") return driver::copy_mode(options);
    return driver::run_mode(options);
  } catch (const CommError& error) {
    std::cerr << "hybridcomm-driver: " << error.what() << '\n';
    return 2;
  }
}
