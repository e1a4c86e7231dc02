// The driver's modes. Each prints one JSON object and returns the exit status: 0 if all is well, 1
// if a check failed.
#pragma once

#include "driver/options.h"

namespace hybridcomm::driver {

int run_mode(const Options& options);  // also bench
int kill_mode(const Options& options);

}  // namespace hybridcomm::driver
