// The driver's modes. Each returns the exit status: 0 if all is well, 1 if a check failed. All but
// pace and copy print one JSON object; those two print what pace.h says.
#pragma once

#include "driver/options.h"

namespace hybridcomm::driver {

int run_mode(const Options& options);  // also bench
int kill_mode(const Options& options);
int pace_mode(const Options& options);
int copy_mode(const Options& options);

}  // namespace hybridcomm::driver
