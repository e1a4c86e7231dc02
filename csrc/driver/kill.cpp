// Mode kill: a rank dies at a random moment, and everybody must know, and say, who.
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <iostream>
#include <random>
#include <sstream>
#include <thread>

#include "driver/exchange.h"
#include "driver/modes.h"
#include "driver/ranks.h"
#include "executor/phase.h"

namespace hybridcomm::driver {
namespace {

// CLOCK_MONOTONIC is one clock for all processes of the machine.
int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

struct Report {
  uint32_t raised;  // 1 once the rank has caught an error
  uint32_t kind;
  int32_t peer;
  uint32_t regrouped;
  int64_t at_ns;
  char message[400];
};

struct Round {
  SharedTable first;
  SharedTable second;
  alignas(kCacheLine) uint32_t phases[kMaxRanks * 16];  // one cache line for each rank
  uint32_t created;                                     // ranks that have made the group
  uint32_t begun[kMaxRanks];  // operations begun, so that the first kill is not always in joining
  Report reports[kMaxRanks];
};

uint32_t& phase_of(Round& round, uint32_t rank) { return round.phases[rank * 16]; }

// Until all ranks have made the group; not for ever, as one of them may be dead.
void await(Round& round, uint32_t world) {
  const int64_t until = now_ns() + 5'000'000'000;
  while (load_acquire(round.created) < world && now_ns() < until) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void await_operations(Round& round, uint32_t rank, uint64_t least) {
  const int64_t until = now_ns() + 500'000'000;
  while (load_relaxed(round.begun[rank]) < least && now_ns() < until) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

// What a rank does in a group: collectives, or messages.
struct Part {
  std::function<std::string(uint64_t)> work;  // by number; returns what is wrong, or throws
  std::function<void()> abort;
  std::function<void()> leave;
  uint64_t all = 0;  // after so many it has done everything that it can do
};

Part join_part(const Options& options, const std::vector<std::string>& prefixes, uint32_t rank,
               uint32_t world, SharedTable& table, uint32_t* phase) {
  if (options.messages) {
    const auto messenger = join_messages(options, rank, world, table, phase);
    const auto exchange = std::make_shared<Exchange>(options, rank, world);
    return {[=](uint64_t i) { return exchange->run(*messenger, i); },
            [=] { messenger->abort("a peer was lost"); }, [=] { messenger->shutdown(); }, 8};
  }
  const auto programs = std::make_shared<std::vector<NamedProgram>>(load_programs(prefixes, rank));
  const auto communicator = join_group(options, rank, world, table, phase);
  const auto workload = std::make_shared<Workload>(options, rank, world);
  return {[=](uint64_t i) {
            return workload->run(*communicator, (*programs)[i % programs->size()], i);
          },
          [=] { communicator->abort("a peer was lost"); }, [=] { communicator->shutdown(); },
          programs->size()};
}

bool goes_on(const Options& options) {
  return options.messages ? options.shape.world > 2 : !options.survivors.empty();
}

// Works until something goes wrong, reports it, then goes on with the survivors.
int rank_body(const Options& options, Round& round, uint32_t rank, uint32_t victim) {
  const uint32_t world = options.shape.world;
  Part part =
      join_part(options, options.programs, rank, world, round.first, &phase_of(round, rank));
  // As torch does: nobody uses a group before all have made it.
  fetch_add(round.created, 1u);
  await(round, world);
  Report& report = round.reports[rank];
  try {
    for (uint64_t i = 0;; ++i) {
      store_relaxed(round.begun[rank], static_cast<uint32_t>(i));
      const std::string wrong = part.work(i);
      if (!wrong.empty()) throw CommError(ErrorKind::kSystem, "wrong: " + wrong);
    }
  } catch (const CommError& error) {
    report.at_ns = now_ns();
    report.kind = static_cast<uint32_t>(error.info().kind);
    report.peer = error.info().peer;
    std::string(error.what()).copy(report.message, sizeof(report.message) - 1);
    store_release(report.raised, 1u);
  }
  part.abort();
  part.leave();
  part = {};
  if (!goes_on(options)) return 0;

  const uint32_t new_rank = rank < victim ? rank : rank - 1;
  // The survivors may have noticed up to a time-out apart.
  Options patient = options;
  patient.timeout_ms = options.timeout_ms * 3 + 5000;
  part = join_part(patient, options.survivors, new_rank, world - 1, round.second, nullptr);
  for (uint64_t i = 0; i < 3 * part.all; ++i) {
    const std::string wrong = part.work(i);
    if (!wrong.empty()) throw CommError(ErrorKind::kSystem, wrong);
  }
  part.leave();
  store_release(report.regrouped, 1u);
  return 0;
}

// Entries of a directory whose names contain `part`.
size_t entries(const char* path, const char* part = "") {
  size_t count = 0;
  if (DIR* directory = opendir(path)) {
    while (const dirent* entry = readdir(directory)) {
      count += std::strstr(entry->d_name, part) != nullptr;
    }
    closedir(directory);
  }
  return count;
}

// Whether a socket is open that some entry of the store speaks of.
bool socket_left(SharedTable& store) {
  for (const SharedTable::Entry& entry : store.entries) {
    std::istringstream fields(entry.value);
    std::string version, state, name, line;
    fields >> version >> state >> name;
    if (state != "open") continue;
    std::ifstream table("/proc/net/unix");
    while (std::getline(table, line)) {
      if (line.find(name) != std::string::npos) return true;
    }
  }
  return false;
}

// What a rank can be killed in.
std::vector<Phase> phases(const Options& options) {
  if (options.messages) {
    return {Phase::kIdle,    Phase::kConnect, Phase::kSend,
            Phase::kReceive, Phase::kBlocked, Phase::kComplete};
  }
  std::vector<Phase> all;
  for (uint32_t phase = 0; phase < kPhases; ++phase) all.push_back(static_cast<Phase>(phase));
  return all;
}

struct Tally {
  std::array<uint64_t, kPhases> killed_in{};
  std::vector<uint64_t> killed_during;  // by program
  std::vector<double> latencies_ms;
  std::vector<std::string> failures;
};

// Stops the victim again and again until `holds`, which may last only nanoseconds. Gives up after a
// while, and leaves it stopped.
void stop_when(pid_t pid, const std::function<bool()>& holds) {
  const int64_t until = now_ns() + 1'000'000'000;
  while (true) {
    ::kill(pid, SIGSTOP);
    int status = 0;
    if (waitpid(pid, &status, WUNTRACED) != pid || !WIFSTOPPED(status)) return;
    if (holds() || now_ns() > until) return;
    ::kill(pid, SIGCONT);
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

// Which program a rank is at, or has just ended.
size_t program_of(const Options& options, const Round& round, uint32_t rank) {
  return load_relaxed(round.begun[rank]) % options.programs.size();
}

void play(const Options& options, uint64_t number, std::mt19937_64& random, Tally& tally) {
  const uint32_t world = options.shape.world;
  const uint32_t victim = static_cast<uint32_t>(random() % world);
  const SharedMemory<Round> shared;
  Round& round = *shared;
  const size_t descriptors = entries("/proc/self/fd");
  // Until a rank has joined, it counts as joining.
  for (uint32_t rank = 0; rank < world; ++rank) {
    phase_of(round, rank) = static_cast<uint32_t>(Phase::kConnect);
  }
  const auto complain = [&](const std::string& what) {
    tally.failures.push_back("round " + std::to_string(number) + ", victim " +
                             std::to_string(victim) + ": " + what);
  };

  // Half of the rounds at a random time in one of the programs, each in turn; half in a phase, each
  // in turn, that random times rarely hit.
  const bool aimed = number % 2 == 1;
  const std::vector<Phase> targets = phases(options);
  const Phase target = targets[(number / 2) % targets.size()];
  Options work = options;
  // Phases of nanoseconds are met more often when nothing else takes long.
  if (aimed && (target == Phase::kPublish || target == Phase::kForward ||
                target == Phase::kSignal || target == Phase::kComplete)) {
    work.count = std::min<uint64_t>(options.count, 16);
  }
  std::vector<pid_t> children;
  for (uint32_t rank = 0; rank < world; ++rank) {
    children.push_back(start_process([&] { return rank_body(work, round, rank, victim); }));
  }
  // A rank that dies before the group is made is the launcher's concern.
  await(round, world);
  if (!aimed) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    if (!options.messages) {
      const size_t program = number / 2 % options.programs.size();
      stop_when(children[victim], [&] { return program_of(options, round, victim) == program; });
    }
  } else {
    if (target != Phase::kConnect) await_operations(round, victim, 1 + random() % 50);
    stop_when(children[victim], [&] {
      return load_relaxed(phase_of(round, victim)) == static_cast<uint32_t>(target);
    });
  }
  const int64_t killed_at = now_ns();
  const bool spare = options.plant == "spare";
  if (!spare) ::kill(children[victim], SIGKILL);

  // Every survivor has its time-out and then some to report, regroup and leave. With the planted
  // fault nobody will, which is soon clear.
  const int64_t until =
      killed_at + static_cast<int64_t>(options.timeout_ms * 4 + (spare ? 0 : 10'000)) * 1'000'000;
  std::vector<bool> gone(world, false);
  std::vector<int> statuses(world, 0);
  for (uint32_t left = world; left > 0 && now_ns() < until;) {
    for (uint32_t rank = 0; rank < world; ++rank) {
      if (!gone[rank] && waitpid(children[rank], &statuses[rank], WNOHANG) == children[rank]) {
        gone[rank] = true;
        --left;
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  const auto phase = static_cast<Phase>(load_relaxed(phase_of(round, victim)));
  ++tally.killed_in[static_cast<uint32_t>(phase)];
  if (!options.messages) ++tally.killed_during[program_of(options, round, victim)];

  for (uint32_t rank = 0; rank < world; ++rank) {
    if (!gone[rank]) {
      complain("rank " + std::to_string(rank) + " did not end");
      ::kill(children[rank], SIGKILL);
      waitpid(children[rank], nullptr, 0);
    }
    if (rank == victim) continue;
    const Report& report = round.reports[rank];
    const std::string who = "rank " + std::to_string(rank);
    if (load_acquire(report.raised) == 0) {
      complain(who + " raised nothing");
      continue;
    }
    const double latency = static_cast<double>(report.at_ns - killed_at) / 1e6;
    const auto kind = static_cast<ErrorKind>(report.kind);
    if (report.peer != static_cast<int32_t>(victim) || kind != ErrorKind::kPeerLost) {
      complain(who + " blames the wrong cause: " + report.message);
    }
    tally.latencies_ms.push_back(latency);
    if (latency > 1000) complain(who + " took " + std::to_string(latency) + " ms");
    if (goes_on(options) && load_acquire(report.regrouped) == 0) {
      complain(who + " could not go on with the survivors");
    }
    if (gone[rank] && statuses[rank] != 0) complain(who + " ended with an error");
  }
  if (entries("/proc/self/fd") != descriptors) complain("descriptors are left over");
  // Others use the directory too.
  if (entries("/dev/shm", "hybridcomm") != 0) complain("files are left over in /dev/shm");
  if (socket_left(round.first) || socket_left(round.second)) complain("a socket is left over");
}

}  // namespace

int kill_mode(const Options& options) {
  if (options.shape.world < 2 || options.shape.world > kMaxRanks) {
    throw CommError(ErrorKind::kInvalid, "kill needs a --world of 2 to 256");
  }
  std::mt19937_64 random(options.seed);
  Tally tally;
  tally.killed_during.resize(options.programs.size());
  for (uint64_t round = 0; round < options.rounds; ++round) play(options, round, random, tally);

  std::sort(tally.latencies_ms.begin(), tally.latencies_ms.end());
  const auto quantile = [&](double q) {
    if (tally.latencies_ms.empty()) return 0.0;
    const auto last = static_cast<double>(tally.latencies_ms.size() - 1);
    return tally.latencies_ms[static_cast<size_t>(q * last)];
  };
  std::cout << R"({"mode": "kill", "world": )" << options.shape.world << R"(, "rounds": )"
            << options.rounds << R"(, "killed_in": {)";
  for (uint32_t phase = 0; phase < kPhases; ++phase) {
    std::cout << (phase == 0 ? "" : ", ") << '"' << phase_name(static_cast<Phase>(phase))
              << "\": " << tally.killed_in[phase];
  }
  std::cout << R"(}, "killed_during": {)";
  for (size_t at = 0; at < options.programs.size(); ++at) {
    const std::string& prefix = options.programs[at];
    std::cout << (at == 0 ? "" : ", ") << '"' << prefix.substr(prefix.find_last_of('/') + 1)
              << "\": " << tally.killed_during[at];
  }
  std::cout << R"(}, "raised_after_ms": {"median": )" << quantile(0.5) << R"(, "p99": )"
            << quantile(0.99) << R"(, "max": )" << quantile(1.0) << R"(}, "failures": )"
            << tally.failures.size() << "}\n";
  for (const std::string& failure : tally.failures) std::cerr << failure << '\n';
  return tally.failures.empty() ? 0 : 1;
}

}  // namespace hybridcomm::driver
