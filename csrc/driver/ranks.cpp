// Threads over one mapping, or processes that join through a shared table.
#include "driver/ranks.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <iostream>
#include <thread>

namespace hybridcomm::driver {
namespace {

int run_body(const std::function<int()>& body) {
  try {
    return body();
  } catch (const CommError& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}

// Ranks as threads, and on request a thread that breaks the rules for ThreadSanitizer to find.
int on_threads(const Options& options, const std::function<int(uint32_t, Communicator&)>& body) {
  const uint32_t world = options.shape.world;
  shm::Membership membership;
  membership.region = shm::Region::create_anonymous(options.shape);
  membership.processes.assign(world, Process::self());
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      failures += run_body([&] {
        CommunicatorOptions group;
        group.group = "driver";
        group.rank = rank;
        group.shape = options.shape;
        const auto communicator = Communicator::attach(group, membership);
        return body(rank, *communicator);
      });
    });
  }
  if (options.plant == "race" && world > 1) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        *reinterpret_cast<volatile char*>(membership.region->slots(0, 0, 1)) = 7;
        std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

}  // namespace

pid_t start_process(const std::function<int()>& body) {
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw system_error("fork");
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  const int status = run_body(body);
  std::cout.flush();
  std::cerr.flush();
  // Not exit(): what the parent registered is not ours to run.
  _exit(status);
}

std::shared_ptr<Communicator> join_group(const Options& options, uint32_t rank, uint32_t world,
                                         SharedTable& table, uint32_t* phase) {
  CommunicatorOptions group;
  group.group = "driver";
  group.rank = rank;
  group.shape = options.shape;
  group.shape.world = world;
  group.timeout = std::chrono::milliseconds(options.timeout_ms);
  group.phase = phase;
  return Communicator::create(group, std::make_shared<SharedStore>(table));
}

int on_every_process(uint32_t world, const std::function<int(uint32_t)>& body,
                     const std::function<void()>& started) {
  std::vector<pid_t> children;
  for (uint32_t rank = 0; rank < world; ++rank) {
    children.push_back(start_process([&] { return body(rank); }));
  }
  if (started) started();
  int failures = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    failures += WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  }
  return failures;
}

int on_every_rank(const Options& options, const std::function<int(uint32_t, Communicator&)>& body,
                  const std::function<void()>& started) {
  if (options.threads) return on_threads(options, body);
  const SharedMemory<SharedTable> table;
  const auto join_and_run = [&](uint32_t rank) {
    const auto communicator = join_group(options, rank, options.shape.world, *table, nullptr);
    return body(rank, *communicator);
  };
  return on_every_process(options.shape.world, join_and_run, started);
}

}  // namespace hybridcomm::driver
