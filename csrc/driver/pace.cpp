// The pipes between the ranks, and modes pace and copy.
#include "driver/pace.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iostream>
#include <string>

#include "base/error.h"
#include "base/platform.h"
#include "driver/copy.h"
#include "driver/modes.h"
#include "driver/ranks.h"

namespace hybridcomm::driver {
namespace {

void close_end(int& descriptor) {
  if (descriptor >= 0) close(descriptor);
  descriptor = -1;
}

// Whether all of `value` came; false at the end of the pipe.
template <class T>
bool read_whole(int descriptor, T& value) {
  // Less than PIPE_BUF is written and read whole.
  const ssize_t got = TEMP_FAILURE_RETRY(read(descriptor, &value, sizeof value));
  if (got < 0) throw system_error("reading from another rank");
  return got == sizeof value;
}

template <class T>
void write_whole(int descriptor, const T& value) {
  if (TEMP_FAILURE_RETRY(write(descriptor, &value, sizeof value)) != sizeof value) {
    throw system_error("writing to another rank");
  }
}

}  // namespace

Pace::Pace(uint32_t world) : world_(world), requests_(world) {
  const auto make = [](Pipe& made) {
    int ends[2];
    if (pipe(ends) != 0) throw system_error("pipe");
    made = {ends[0], ends[1]};
  };
  for (uint32_t rank = 1; rank < world; ++rank) make(requests_[rank]);
  make(reports_);
}

Pace::~Pace() { close_all(); }

void Pace::close_all() {
  for (Pipe& request : requests_) {
    close_end(request.reads);
    close_end(request.writes);
  }
  close_end(reports_.reads);
  close_end(reports_.writes);
}

void Pace::keep_own_ends(uint32_t own) {
  for (uint32_t rank = 1; rank < world_; ++rank) {
    if (own != rank) close_end(requests_[rank].reads);
    if (own != 0) close_end(requests_[rank].writes);
  }
  close_end(own == 0 ? reports_.writes : reports_.reads);
}

uint64_t Pace::next(uint32_t rank) {
  uint64_t calls = 0;
  if (rank != 0) return read_whole(requests_[rank].reads, calls) ? calls : 0;
  std::string line;
  if (std::getline(std::cin, line)) {
    if (line.empty() || line.size() > 18 ||
        line.find_first_not_of("0123456789") != std::string::npos) {
      throw CommError(ErrorKind::kInvalid, "'" + line + "' is no number of calls");
    }
    calls = std::stoull(line);
  }
  for (uint32_t other = 1; other < world_; ++other) write_whole(requests_[other].writes, calls);
  return calls;
}

void Pace::report(uint32_t rank, double seconds) {
  if (rank != 0) return write_whole(reports_.writes, seconds);
  for (uint32_t other = 1; other < world_; ++other) {
    double theirs = 0;
    if (!read_whole(reports_.reads, theirs)) {
      throw CommError(ErrorKind::kPeerLost, "another rank has ended before its sample was over");
    }
    seconds = std::max(seconds, theirs);
  }
  std::cout.precision(9);
  std::cout << seconds << std::endl;
}

void Pace::sample(uint32_t rank, const std::function<void()>& call) {
  keep_own_ends(rank);
  if (rank == 0) std::cout << "ready" << std::endl;
  while (const uint64_t calls = next(rank)) {
    call();
    const auto before = std::chrono::steady_clock::now();
    for (uint64_t i = 0; i < calls; ++i) call();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - before;
    report(rank, took.count() / static_cast<double>(calls));
  }
}

int pace_mode(const Options& options) {
  Pace pace(options.shape.world);
  const auto body = [&](uint32_t rank, Communicator& communicator) {
    const std::vector<NamedProgram> programs = load_programs(options.programs, rank);
    Workload workload(options, rank, options.shape.world);
    const std::string wrong = workload.run(communicator, programs.front(), 0);
    if (!wrong.empty()) {
      std::cerr << "wrong: " + wrong + "\n";
      return 1;
    }
    pace.sample(rank, [&] { workload.time(communicator, programs.front()); });
    return 0;
  };
  return on_every_rank(options, body, [&] { pace.close_all(); }) != 0;
}

int copy_mode(const Options& options) {
  const CopyKind kind = options.nontemporal ? CopyKind::kNonTemporal : CopyKind::kPlain;
  Pace pace(options.shape.world);
  const auto body = [&](uint32_t rank) {
    // Written once, so that every page is there.
    std::vector<std::byte> from(options.count, std::byte{1});
    std::vector<std::byte> to(options.count, std::byte{0});
    pace.sample(rank, [&] { copy_bytes(kind, to.data(), from.data(), options.count); });
    return std::equal(from.begin(), from.end(), to.begin()) ? 0 : 1;
  };
  return on_every_process(options.shape.world, body, [&] { pace.close_all(); }) != 0;
}

}  // namespace hybridcomm::driver
