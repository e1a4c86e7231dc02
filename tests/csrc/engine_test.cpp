// The progress thread must be enough by itself: nobody waits for these operations, as nobody waits
// for DDP's futures.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <random>

#include "check.h"
#include "driver/ranks.h"
#include "driver/workload.h"
#include "engine/communicator.h"
#include "programs.h"
#include "ranks.h"

namespace {

using namespace ranks;

// Whether it becomes true, within a time in which everything should.
bool becomes_true(const std::function<bool()>& condition) {
  for (int i = 0; i < 20'000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  return condition();
}

std::vector<Group> make_groups(uint32_t count, uint32_t world) {
  std::vector<Group> groups;
  for (uint32_t i = 0; i < count; ++i) groups.emplace_back(world);
  return groups;
}

// ---- sleeping -----------------------------------------------------------------------------------

// Submits operations one after another and sleeps until each one's callback comes. Returns the
// longest that one took.
std::chrono::microseconds submit_and_sleep(Communicator& communicator,
                                           const std::shared_ptr<const Program>& program,
                                           int operations, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::chrono::microseconds longest{0};
  Bell bell;
  Bell* const place = &bell;
  for (int i = 0; i < operations; ++i) {
    uint32_t done = 0;
    OperationArguments arguments;
    arguments.program = program;
    arguments.algorithm = "barrier";
    arguments.on_complete = [&](const Operation& ended) {
      const ErrorInfo* const error = ended.error();
      CHECK(error == nullptr, "%s", error == nullptr ? "" : error->message.c_str());
      publish(done, 1u);
      ring_always(bell);
    };
    // Now and then the engine has gone to sleep, or is just about to.
    const auto pause = std::chrono::nanoseconds(random() % 60'000);
    for (const auto until = Clock::now() + pause; Clock::now() < until;) cpu_relax();
    const auto before = Clock::now();
    const auto operation = communicator.submit(std::move(arguments));
    wait_until(
        WaitPolicy{}, [&] { return observe(done) != 0 ? Attempt::kDone : Attempt::kBlocked; },
        [&] { return std::span<Bell* const>(&place, 1); }, [] { return std::chrono::seconds(10); });
    longest = std::max(
        longest, std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - before));
  }
  return longest;
}

// Each rank with its own engine, in its own process. An operation that the engine takes up just
// before it falls asleep must not sleep with it.
void no_operation_is_forgotten(uint32_t world, int operations) {
  const driver::SharedMemory<driver::SharedTable> table;
  std::vector<pid_t> children;
  for (uint32_t rank = 0; rank < world; ++rank) {
    children.push_back(driver::start_process([&] {
      driver::Options options;
      options.shape = {world, 1, 2, 64};
      const auto communicator = driver::join_group(options, rank, world, *table, nullptr);
      const auto longest =
          submit_and_sleep(*communicator, programs::load("barrier.dissemination", world, rank),
                           operations, 100 + rank);
      CHECK(longest < std::chrono::seconds(5), "rank %u: an operation took %lld us", rank,
            static_cast<long long>(longest.count()));
      return check_status();
    }));
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

// ---- callbacks ----------------------------------------------------------------------------------

void callbacks_come_once_and_in_order() {
  const Group group(2);
  group.each([&](uint32_t rank) {
    for (int i = 0; i < 200; ++i) {
      std::vector<float> data(100, 1);
      std::shared_ptr<Operation> operation;
      std::atomic<int> epilogues{0}, completions{0};
      OperationArguments arguments = all_reduce(2, rank, data);
      arguments.epilogue = [&] {
        CHECK(completions == 0 && data[99] == 2, "epilogue before the result");
        ++epilogues;
      };
      arguments.on_complete = [&](const Operation& ended) {
        CHECK(ended.error() == nullptr && epilogues == 1);
        ++completions;
      };
      operation = group[rank].submit(std::move(arguments));
      if (i % 2 == 0) {
        group[rank].wait(operation, milliseconds(0));
        CHECK(operation->done() && epilogues == 1 && data[0] == 2);
      }
      // done() turns true before the callback, which another thread may still be running.
      CHECK(becomes_true([&] { return completions == 1; }));
      CHECK(operation->done() && operation->error() == nullptr);
      // What is said twice would be said by the next operation at the latest.
      group[rank].run(barrier(2, rank));
      CHECK(completions == 1 && epilogues == 1);
    }
  });
}

void an_epilogue_that_throws_fails_the_operation() {
  const Group group(2);
  group.each([&](uint32_t rank) {
    OperationArguments arguments = barrier(2, rank);
    if (rank == 0) arguments.epilogue = [] { throw std::runtime_error("no room to copy back"); };
    const auto error = caught([&] { group[rank].run(std::move(arguments)); });
    if (rank == 0) {
      CHECK_ERROR(error, kSystem, has(error, "no room to copy back"));
    } else {
      CHECK(!error || error->kind == ErrorKind::kSystem, "%s", text(error));
    }
  });
}

// A callback may use its own group: it holds no lock, and the operation is out of the queue.
void a_callback_may_run_an_operation() {
  const Group group(2);
  std::atomic<int> inner{0};
  group.each([&](uint32_t rank) {
    std::vector<float> data(10, 1), more(10, 5);
    OperationArguments arguments = all_reduce(2, rank, data);
    // Rank 0's callback runs on the engine's thread; rank 1 makes the same calls itself.
    if (rank == 0) {
      arguments.on_complete = [&](const Operation&) {
        group[0].run(all_reduce(2, 0, more));
        ++inner;
      };
      group[0].submit(std::move(arguments));
      CHECK(becomes_true([&] { return inner == 1; }));
    } else {
      group[1].run(std::move(arguments));
      group[1].run(all_reduce(2, 1, more));
    }
    CHECK(data[9] == 2 && more[9] == 10);
  });
}

// ---- waiting ------------------------------------------------------------------------------------

void wait_may_give_up_before_the_operation() {
  const Group group(2);
  std::vector<float> data(10, 1), other(10, 1);
  const auto operation = group[0].submit(all_reduce(2, 0, data));
  for (const int ms : {1, 50}) {
    std::optional<ErrorInfo> error;
    const auto took =
        time_of([&] { error = caught([&] { group[0].wait(operation, milliseconds(ms)); }); });
    CHECK_ERROR(error, kTimeout, has(error, "all_reduce #1") && has(error, "goes on"));
    CHECK(took >= milliseconds(ms) && took < milliseconds(ms + 1000));
    CHECK(!operation->done());
  }
  group[1].run(all_reduce(2, 1, other));
  group[0].wait(operation, milliseconds(10'000));
  CHECK(data[0] == 2 && !group[0].failure());
}

// Each rank has three threads, which wait for operations of five groups, each in its own order.
void threads_wait_for_many_groups_in_any_order() {
  constexpr uint32_t kGroups = 5, kThreads = 3;
  const std::vector<Group> groups(make_groups(kGroups, 2));
  groups[0].each([&](uint32_t rank) {
    for (int round = 0; round < 30; ++round) {
      std::vector<std::vector<float>> results;
      for (uint32_t g = 0; g < kGroups; ++g) {
        results.emplace_back(500, static_cast<float>((rank + 1) * (g + 1)));
      }
      // Ranks submit in different orders too: groups do not wait for each other.
      std::vector<std::shared_ptr<Operation>> pending(kGroups);
      for (uint32_t i = 0; i < kGroups; ++i) {
        const uint32_t g = rank == 0 ? i : kGroups - 1 - i;
        pending[g] = groups[g][rank].submit(all_reduce(2, rank, results[g]));
      }
      std::vector<std::thread> waiters;
      for (uint32_t t = 0; t < kThreads; ++t) {
        waiters.emplace_back([&, t] {
          for (uint32_t i = 0; i < kGroups; ++i) {
            const uint32_t g = (i * (t + 1) + rank + t) % kGroups;
            groups[g][rank].wait(pending[g], milliseconds(0));
            CHECK(results[g][499] == static_cast<float>(3 * (g + 1)));
          }
        });
      }
      for (std::thread& waiter : waiters) waiter.join();
    }
  });
}

// More groups in flight than one sleep has bells for.
void more_groups_than_bells() {
  constexpr uint32_t kGroups = kMaxBells + 6;
  const std::vector<Group> groups(make_groups(kGroups, 2));
  std::atomic<uint32_t> done{0};
  const auto submit = [&](uint32_t g, uint32_t rank) {
    OperationArguments arguments = barrier(2, rank);
    arguments.on_complete = [&](const Operation& ended) { done += ended.error() == nullptr; };
    groups[g][rank].submit(std::move(arguments));
  };
  for (int round = 0; round < 3; ++round) {
    done = 0;
    for (uint32_t g = 0; g < kGroups; ++g) submit(g, 0);
    std::this_thread::sleep_for(milliseconds(20));
    CHECK(done == 0);
    // The engine sleeps. Half of the peers go through it, half are threads that only ring.
    const auto took = time_of([&] {
      for (uint32_t g = kGroups; g-- > 0;) {
        if (g % 2 == 0) {
          submit(g, 1);
        } else {
          groups[g][1].run(barrier(2, 1));
        }
      }
      CHECK(becomes_true([&] { return done == kGroups + (kGroups + 1) / 2; }), "%u", done.load());
    });
    CHECK(took < milliseconds(5000), "%lld ms", static_cast<long long>(took.count()));
  }
}

// ---- deadlines that only the engine can keep ----------------------------------------------------

void a_deadline_needs_no_waiter() {
  // A chain in another group, which always progresses, must not keep the engine from looking.
  for (const bool busy : {false, true}) {
    const Group alone(2);
    const Group chain(1);
    std::atomic<bool> stop{!busy}, stopped{!busy};
    std::function<void()> next = [&] {
      OperationArguments arguments = barrier(1, 0);
      arguments.on_complete = [&](const Operation&) { stop ? stopped.store(true) : next(); };
      chain[0].submit(std::move(arguments));
    };
    if (busy) next();
    OperationArguments arguments = barrier(2, 0);
    arguments.timeout = milliseconds(150);
    std::atomic<bool> failed{false};
    arguments.on_complete = [&](const Operation& ended) {
      const ErrorInfo* const error = ended.error();
      failed = error != nullptr && error->kind == ErrorKind::kTimeout && error->peer == 1;
    };
    const auto took = time_of([&] {
      alone[0].submit(std::move(arguments));
      CHECK(becomes_true([&] { return failed.load(); }), "busy %d", busy);
    });
    CHECK(took >= milliseconds(150) && took < milliseconds(2000), "busy %d: %lld ms", busy,
          static_cast<long long>(took.count()));
    stop = true;
    CHECK(becomes_true([&] { return stopped.load(); }));
  }
}

// ---- what groups cost ---------------------------------------------------------------------------

// A rendezvous for threads.
class Table : public KeyValueStore {
 public:
  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_[key] = value;
  }
  std::optional<std::string> try_get(const std::string& key) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = entries_.find(key);
    return at == entries_.end() ? std::nullopt : std::optional(at->second);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> entries_;
};

struct Cost {
  size_t descriptors = entries("/proc/self/fd");
  size_t threads = entries("/proc/self/task");
  size_t mapped = 0;  // bytes of groups' memory

  Cost() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      unsigned long long begin = 0, end = 0;
      if (line.find("memfd:hybridcomm") == std::string::npos) continue;
      if (std::sscanf(line.c_str(), "%llx-%llx", &begin, &end) == 2) mapped += end - begin;
    }
  }
  bool operator==(const Cost&) const = default;

  static size_t entries(const char* path) {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path)) ++count;
    return count;
  }
};

std::shared_ptr<Communicator> make(uint32_t rank, uint32_t world, std::shared_ptr<Table> table) {
  CommunicatorOptions options;
  options.rank = rank;
  options.group = "made";
  options.shape = {world, 1, 2, 64};
  return Communicator::create(options, std::move(table));
}

void groups_cost_nothing_when_idle_or_gone() {
  const auto use = [](bool async) {
    const auto table = std::make_shared<Table>();
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const auto group = make(rank, 2, table);
        std::vector<float> data(10, 1);
        if (async) {
          group->wait(group->submit(all_reduce(2, rank, data)), milliseconds(0));
        } else {
          group->run(all_reduce(2, rank, data));
        }
        CHECK(data[0] == 2);
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  use(true);  // the engine's thread and this process's own pidfd stay
  // The engine lets go of a group at its next turn.
  CHECK(becomes_true([] { return Cost().mapped == 0; }));
  const Cost before;
  {
    // A planted leftover, to see that it would be seen.
    const auto held = make(0, 2, std::make_shared<Table>());
    OperationArguments arguments = barrier(2, 0);
    arguments.timeout = milliseconds(1);
    caught([&] { held->run(std::move(arguments)); });
    const Cost more;
    CHECK(more.descriptors > before.descriptors && more.mapped > before.mapped);
  }
  std::vector<std::shared_ptr<Communicator>> idle;
  for (int i = 0; i < 200; ++i) idle.push_back(make(0, 4, std::make_shared<Table>()));
  CHECK(Cost() == before, "200 idle groups cost something");
  idle.clear();
  for (int i = 0; i < 200; ++i) use(i % 4 == 0);
  becomes_true([&] { return Cost() == before; });
  const Cost after;
  CHECK(after == before, "descriptors %zu, threads %zu, bytes %zu became %zu, %zu, %zu",
        before.descriptors, before.threads, before.mapped, after.descriptors, after.threads,
        after.mapped);
}

}  // namespace

int main() {
  no_operation_is_forgotten(2, 20'000);  // first: it forks
  callbacks_come_once_and_in_order();
  an_epilogue_that_throws_fails_the_operation();
  a_callback_may_run_an_operation();
  wait_may_give_up_before_the_operation();
  threads_wait_for_many_groups_in_any_order();
  more_groups_than_bells();
  a_deadline_needs_no_waiter();
  groups_cost_nothing_when_idle_or_gone();
  return check_status();
}
