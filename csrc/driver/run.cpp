// Modes run and bench.
#include <algorithm>
#include <iostream>
#include <random>
#include <sstream>
#include <thread>

#include "base/reduce.h"
#include "driver/modes.h"
#include "driver/ranks.h"

namespace hybridcomm::driver {
namespace {

int check_rank(const Options& options, uint32_t rank, Communicator& communicator) {
  const std::vector<NamedProgram> programs = load_programs(options.programs, rank);
  Workload workload(options, rank, options.shape.world);
  std::mt19937_64 random(options.seed * 1000 + rank);
  for (uint64_t i = 0; i < options.iterations; ++i) {
    if (options.delay_us > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % (options.delay_us + 1)));
    }
    const std::string wrong = workload.run(communicator, programs[i % programs.size()], i);
    if (!wrong.empty()) {
      // One write, so that lines of several ranks do not mix.
      std::cerr << "wrong: " + wrong + "\n";
      return 1;
    }
  }
  return 0;
}

int time_rank(const Options& options, uint32_t rank, Communicator& communicator) {
  const std::vector<NamedProgram> programs = load_programs(options.programs, rank);
  Workload workload(options, rank, options.shape.world);
  std::ostringstream out;
  out << R"({"mode": "bench", "world": )" << options.shape.world << R"(, "isa": ")" << reduce_isa()
      << R"(", "bytes": )" << options.count * dtype_size(options.dtype) << R"(, "slots": )"
      << options.shape.slots << R"(, "slot_bytes": )" << options.shape.slot_bytes
      << R"(, "microseconds": {)";
  for (size_t p = 0; p < programs.size(); ++p) {
    std::vector<double> times;
    for (uint64_t i = 0; i < options.iterations + options.iterations / 10 + 1; ++i) {
      const double seconds = workload.time(communicator, programs[p]);
      if (i > options.iterations / 10) times.push_back(seconds * 1e6);
    }
    std::sort(times.begin(), times.end());
    out << (p == 0 ? "\"" : ", \"") << programs[p].name << R"(": {"median": )"
        << times[times.size() / 2] << R"(, "lower_quartile": )" << times[times.size() / 4]
        << R"(, "upper_quartile": )" << times[times.size() * 3 / 4] << "}";
  }
  out << "}}\n";
  if (rank == 0) std::cout << out.str();
  return 0;
}

}  // namespace

int run_mode(const Options& options) {
  const bool bench = options.mode == "bench";
  const int failures = on_every_rank(options, [&](uint32_t rank, Communicator& communicator) {
    return bench ? time_rank(options, rank, communicator) : check_rank(options, rank, communicator);
  });
  if (!bench) {
    std::cout << R"({"mode": "run", "world": )" << options.shape.world << R"(, "operations": )"
              << options.iterations << R"(, "failed_ranks": )" << failures << "}\n";
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace hybridcomm::driver
