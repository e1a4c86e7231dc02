// Parsing and help.
#include "driver/options.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>

#include "base/error.h"
#include "transports/shm/region.h"

namespace hybridcomm::driver {
namespace {

constexpr char kHelp[] =
    R"(hybridcomm-driver MODE --world N --programs PREFIX[,PREFIX...] [options]

Runs flat programs (python -m hybridcomm program ... --flat PREFIX) with no Python and no torch.

  run     every rank runs --iterations operations, program by program, and checks every element
  kill    --rounds times: start the ranks, kill one at a random moment, and check that each survivor
          raises within 1 s and names the dead rank, that nothing is left behind, and that the
          survivors can make a new group and go on (--survivors: programs for world - 1)
  bench   as run, with times, without checks
  pace    times one program when asked: reads numbers of calls from standard input, a line each, and
          writes the seconds of one call on the slowest rank; "ready" comes first
  copy    the same for copying --count bytes, which the ranks do together

  --threads            ranks as threads over one mapping (for ThreadSanitizer)
  --async              operations through the engine's thread
  --messages           kill: messages around a ring, of --count bytes, instead of programs
  --count N            elements that each rank contributes                   (1000)
  --dtype T            float32, float16, bfloat16, int32, ...                (float32)
  --op OP              SUM, MAX, ...                                         (SUM)
  --iterations N       operations per rank                                   (100)
  --delay-us N         longest random pause before an operation              (0)
  --channels N --slots N --slot-bytes N   the group's links                  (1, 4, 65536)
  --timeout-ms N       of an operation                                       (30000)
  --rounds N --seed N  for kill                                              (1, 1)
  --stores plain|nontemporal              for copy                           (plain)
  --plant FAULT        run: race (two threads write one slot), stale (one element is not updated)
                       kill: spare (nobody is killed)
)";

[[noreturn]] void refuse(const std::string& what) {
  throw CommError(ErrorKind::kInvalid, what + "; see hybridcomm-driver --help");
}

uint64_t number(const std::string& option, const std::string& text) {
  size_t used = 0;
  uint64_t value = 0;
  try {
    value = std::stoull(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != text.size()) refuse(option + " must be a number, got '" + text + "'");
  return value;
}

std::vector<std::string> list(const std::string& text) {
  std::vector<std::string> items(1);
  for (const char c : text) {
    if (c == ',') {
      items.emplace_back();
    } else {
      items.back() += c;
    }
  }
  return items;
}

// The code whose name is `text`, of `codes` codes.
template <class Code, class NameOf>
Code named(const std::string& option, const std::string& text, int codes, NameOf name_of) {
  for (int i = 0; i < codes; ++i) {
    if (text == name_of(static_cast<Code>(i))) return static_cast<Code>(i);
  }
  refuse(option + " does not know '" + text + "'");
}

}  // namespace

Options parse_options(int argc, char** argv) {
  Options options;
  options.shape.slots = 4;
  options.shape.slot_bytes = 65536;
  if (argc < 2 || std::string(argv[1]) == "--help") {
    std::cout << kHelp;
    std::exit(argc < 2 ? 2 : 0);
  }
  options.mode = argv[1];
  constexpr std::array kModes = {"run", "kill", "bench", "pace", "copy"};
  if (std::find(kModes.begin(), kModes.end(), options.mode) == kModes.end()) {
    refuse("mode '" + options.mode + "' is none of run, kill, bench, pace, copy");
  }
  const std::map<std::string, uint64_t*> numbers = {{"--count", &options.count},
                                                    {"--iterations", &options.iterations},
                                                    {"--delay-us", &options.delay_us},
                                                    {"--timeout-ms", &options.timeout_ms},
                                                    {"--rounds", &options.rounds},
                                                    {"--seed", &options.seed},
                                                    {"--slot-bytes", &options.shape.slot_bytes}};
  const std::map<std::string, uint32_t*> small_numbers = {{"--world", &options.shape.world},
                                                          {"--channels", &options.shape.channels},
                                                          {"--slots", &options.shape.slots}};
  for (int i = 2; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--threads") {
      options.threads = true;
      continue;
    }
    if (option == "--async") {
      options.async = true;
      continue;
    }
    if (option == "--messages") {
      options.messages = true;
      continue;
    }
    if (i + 1 == argc) refuse(option + " is unknown, or lacks its value");
    const std::string value = argv[++i];
    if (const auto at = numbers.find(option); at != numbers.end()) {
      *at->second = number(option, value);
    } else if (const auto small = small_numbers.find(option); small != small_numbers.end()) {
      *small->second = static_cast<uint32_t>(number(option, value));
    } else if (option == "--programs") {
      options.programs = list(value);
    } else if (option == "--survivors") {
      options.survivors = list(value);
    } else if (option == "--dtype") {
      options.dtype = named<DType>(option, value, kDTypeCount, dtype_name);
    } else if (option == "--op") {
      options.redop = named<RedOp>(option, value, kRedOpCount, redop_name);
    } else if (option == "--stores") {
      if (value != "plain" && value != "nontemporal")
        refuse(option + " does not know '" + value + "'");
      options.nontemporal = value == "nontemporal";
    } else if (option == "--plant") {
      options.plant = value;
    } else {
      refuse(option + " is unknown");
    }
  }
  if (options.messages && options.mode != "kill") refuse("--messages is for kill");
  const bool needs_programs = !options.messages && options.mode != "copy";
  if (options.programs.empty() && needs_programs) refuse("--programs is missing");
  if (options.threads && (options.mode == "pace" || options.mode == "copy")) {
    refuse("--threads is not for " + options.mode);
  }
  shm::validate(options.shape);
  return options;
}

}  // namespace hybridcomm::driver
