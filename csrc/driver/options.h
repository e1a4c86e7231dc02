// The driver's command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "transports/shm/layout.h"

namespace hybridcomm::driver {

struct Options {
  std::string mode;  // run, kill, bench, pace or copy
  shm::Shape shape;
  std::vector<std::string> programs;   // prefixes: rank r loads PREFIX.rank<r>
  std::vector<std::string> survivors;  // the same for world - 1 ranks, which meet after a kill
  DType dtype = DType::kFloat32;
  RedOp redop = RedOp::kSum;
  uint64_t count = 1000;
  uint64_t iterations = 100;
  uint64_t delay_us = 0;  // longest random pause before an operation
  uint64_t timeout_ms = 30'000;
  uint64_t rounds = 1;
  uint64_t seed = 1;
  bool threads = false;      // ranks are threads with one mapping, not processes
  bool async = false;        // operations through the engine's thread
  bool nontemporal = false;  // copy: stores that go past the caches
  bool messages = false;     // kill: messages around a ring instead of programs
  std::string plant;         // a fault that the checks must find
};

// Throws CommError(kInvalid) naming the option.
Options parse_options(int argc, char** argv);

}  // namespace hybridcomm::driver
