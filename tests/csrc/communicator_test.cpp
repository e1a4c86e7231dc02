// What a group's operations say and do when something is wrong, and that they end.
#include <atomic>
#include <random>

#include "check.h"
#include "programs.h"
#include "ranks.h"

namespace {

using namespace ranks;

// ---- agreement ----------------------------------------------------------------------------------

// The same program for another root: the header's field alone.
std::shared_ptr<const Program> rooted(const std::string& name, uint32_t world, uint32_t rank,
                                      uint32_t root) {
  programs::Bytes bytes = programs::read(name, world, rank);
  std::memcpy(bytes.data() + 40, &root, sizeof(root));
  return Program::parse(bytes);
}

struct Mismatch {
  const char* what;
  const char* ours;    // how the error describes the call of ranks 0 and 2
  const char* theirs;  // and that of rank 1
  // Gives the call of one rank; `odd` is rank 1's.
  std::function<OperationArguments(uint32_t rank, bool odd, std::vector<float>& data)> call;
};

constexpr uint32_t kWorld = 3;

OperationArguments reduced(uint32_t rank, std::vector<float>& data,
                           const std::function<void(OperationArguments&)>& change = {}) {
  data.resize(8);
  OperationArguments arguments = all_reduce(kWorld, rank, data);
  if (change) change(arguments);
  return arguments;
}

const std::vector<Mismatch> kMismatches = {
    {"dtype", "all_reduce #1 of 8 float32 with SUM by two_shot",
     "all_reduce #1 of 8 int32 with SUM by two_shot",
     [](uint32_t rank, bool odd, std::vector<float>& data) {
       return reduced(rank, data, [&](auto& a) { a.dtype = odd ? DType::kInt32 : a.dtype; });
     }},
    {"operation", "of 8 float32 with SUM", "of 8 float32 with MAX",
     [](uint32_t rank, bool odd, std::vector<float>& data) {
       return reduced(rank, data, [&](auto& a) { a.redop = odd ? RedOp::kMax : a.redop; });
     }},
    {"count", "of 8 float32", "of 9 float32",
     [](uint32_t rank, bool odd, std::vector<float>& data) {
       data.resize(odd ? 9 : 8);
       return all_reduce(kWorld, rank, data);
     }},
    {"algorithm", "by two_shot", "by ring",
     [](uint32_t rank, bool odd, std::vector<float>& data) {
       return reduced(rank, data, [&](auto& a) {
         if (!odd) return;
         a.algorithm = "ring";
         a.program = programs::load("all_reduce.ring", kWorld, rank);
       });
     }},
    {"collective", "all_reduce #1 of 8 float32 with SUM", "called barrier #1 by dissemination",
     [](uint32_t rank, bool odd, std::vector<float>& data) {
       return odd ? barrier(kWorld, rank) : reduced(rank, data);
     }},
    {"root", "broadcast #1 of 8 float32 from root 1 by direct",
     "broadcast #1 of 8 float32 from root 2 by direct",
     [](uint32_t rank, bool odd, std::vector<float>& data) {
       data.resize(8);
       return call("direct", rooted("broadcast.direct", kWorld, rank, odd ? 2 : 1), DType::kFloat32,
                   data);
     }},
};

void mismatches_are_errors_on_every_rank() {
  for (const Mismatch& mismatch : kMismatches) {
    // The last round is the planted opposite: nobody is odd, and nothing is wrong.
    for (const bool odd : {true, false}) {
      const Group group(kWorld);
      group.each([&](uint32_t rank) {
        std::vector<float> data;
        const auto error =
            caught([&] { group[rank].run(mismatch.call(rank, odd && rank == 1, data)); });
        if (!odd) {
          CHECK(!error, "%s: %s", mismatch.what, text(error));
          return;
        }
        CHECK_ERROR(error, kMismatch,
                    has(error, mismatch.ours) && has(error, mismatch.theirs) &&
                        has(error, "rank 1 called") && error->sequence == 1 &&
                        error->rank == static_cast<int>(rank));
        const auto next = caught([&] { group[rank].run(barrier(kWorld, rank)); });
        CHECK_ERROR(next, kMismatch, has(next, "not begun"));
      });
    }
  }
}

// One rank made a call more: the next ones no longer fit.
void a_call_too_many_is_an_error() {
  const Group group(2);
  group.each([&](uint32_t rank) {
    std::vector<float> data(8);
    group[rank].run(all_reduce(2, rank, data));
    const auto error = caught([&] {
      if (rank == 1) group[rank].run(barrier(2, rank));
      group[rank].run(all_reduce(2, rank, data));
    });
    CHECK_ERROR(error, kMismatch, has(error, "barrier #2") && has(error, "all_reduce #2"));
  });
}

// ---- deadlines ----------------------------------------------------------------------------------

// Within 10 % of the time-out; a machine that is busy elsewhere gets more tries, but never one that
// comes too early.
void expect_timeout(milliseconds timeout, const std::function<std::optional<ErrorInfo>()>& call) {
  milliseconds best = milliseconds::max();
  for (int i = 0; i < 4 && best > timeout * 11 / 10; ++i) {
    std::optional<ErrorInfo> error;
    const milliseconds took = time_of([&] { error = call(); });
    CHECK_ERROR(error, kTimeout,
                has(error, "Timed out after " + std::to_string(timeout.count()) + " ms"));
    CHECK(took >= timeout, "%lld ms", static_cast<long long>(took.count()));
    best = std::min(best, took);
  }
  CHECK(best <= timeout * 11 / 10, "%lld ms instead of %lld", static_cast<long long>(best.count()),
        static_cast<long long>(timeout.count()));
}

void timeouts_name_who_is_missing() {
  for (const int ms : {200, 1000}) {
    expect_timeout(milliseconds(ms), [&] {
      const Group group(2, milliseconds(ms));
      std::vector<float> data(256);
      const auto error = caught([&] { group[0].run(all_reduce(2, 0, data)); });
      CHECK_ERROR(error, kTimeout,
                  has(error,
                      "all_reduce #1 (1.0 KiB of float32, group 'test', world size 2) on "
                      "rank 0: Timed out after") &&
                      has(error, "waiting for rank 1 (which has called nothing) to call it"));
      return error;
    });
  }
  // Two wait for a third. Whoever gives up first, both name the one that is missing.
  const Group group(3, milliseconds(200), "timed");
  group.each([&](uint32_t rank) {
    if (rank == 2) return;
    std::vector<float> data(256);
    const auto error = caught([&] { group[rank].run(all_reduce(3, rank, data)); });
    CHECK_ERROR(error, kTimeout,
                error->peer == 2 && error->sequence == 1 && error->bytes == 1024 &&
                    error->rank == static_cast<int>(rank) && error->operation == "all_reduce" &&
                    error->group == "timed");
  });
}

void an_operation_may_have_its_own_timeout() {
  expect_timeout(milliseconds(200), [] {
    const Group group(2, milliseconds(60'000));
    OperationArguments arguments = barrier(2, 0);
    arguments.timeout = milliseconds(200);
    return caught([&] { group[0].run(std::move(arguments)); });
  });
  expect_timeout(milliseconds(200), [] {
    const Group group(2, milliseconds(60'000));
    group[0].set_timeout(milliseconds(200));
    CHECK(group[0].timeout() == milliseconds(200));
    return caught([&] { group[0].run(barrier(2, 0)); });
  });
  const Group group(2);
  CHECK_ERROR(caught([&] { group[0].set_timeout(milliseconds(0)); }), kInvalid);
}

// A program that cannot end: both wait for the other's token. The error says where they stand.
void a_stuck_operation_says_on_what() {
  const Group group(2, milliseconds(200));
  group.each([&](uint32_t rank) {
    programs::Writer writer;
    writer.collective = Collective::kBarrier;
    writer.rank = rank;
    writer.wait({1 - rank}).signal({1 - rank});
    OperationArguments arguments;
    arguments.algorithm = "stuck";
    arguments.program = writer.parse();
    const auto error = caught([&] { group[rank].run(std::move(arguments)); });
    CHECK_ERROR(error, kTimeout);
    // The other gave up first, and said so.
    if (has(error, "reported by") || has(error, "had given up waiting for this rank")) return;
    CHECK_ERROR(error, kTimeout,
                error->peer == static_cast<int>(1 - rank) &&
                    has(error, "rank " + std::to_string(1 - rank) +
                                   " to send; that rank is in the "
                                   "middle of it, in phase 'blocked'"));
  });
}

// ---- abort, leave, shut down --------------------------------------------------------------------

void abort_reaches_everybody() {
  const Group group(3);
  std::atomic<int> waiting{0};
  std::atomic<int64_t> aborted_at{0};
  group.each([&](uint32_t rank) {
    if (rank == 2) {
      // Another thread of rank 2 aborts while 0, 1 and 2 wait: 2 for an operation of its own.
      std::thread waiter([&] {
        ++waiting;
        const auto error = caught([&] { group[2].run(barrier(3, 2)); });
        CHECK_ERROR(error, kAborted, error->peer == 2 && has(error, "had enough"));
      });
      while (waiting < 2) std::this_thread::yield();
      std::this_thread::sleep_for(milliseconds(20));
      aborted_at = Clock::now().time_since_epoch().count();
      group[2].abort("had enough");
      waiter.join();
      group[2].abort("again");
    } else if (rank == 0) {
      ++waiting;
      const auto error = caught([&] { group[0].run(barrier(3, 0)); });
      const auto took = Clock::now().time_since_epoch().count() - aborted_at;
      CHECK_ERROR(error, kAborted, error->peer == 2 && has(error, "rank 2 aborted the group"));
      CHECK(took < 500'000'000, "%lld ns", static_cast<long long>(took));
    }
  });
  // Rank 1 had called nothing; it learns at its next call.
  const auto late = caught([&] { group[1].run(barrier(3, 1)); });
  CHECK_ERROR(late, kAborted, late->peer == 2);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const auto after = caught([&] { group[rank].run(barrier(3, rank)); });
    CHECK_ERROR(after, kAborted, has(after, "not begun"));
    CHECK(group[rank].failure() && group[rank].failure()->kind == ErrorKind::kAborted);
  }
}

void what_is_queued_behind_a_failure_fails() {
  const Group group(2);
  std::vector<std::shared_ptr<Operation>> queued;
  std::atomic<int> callbacks{0}, epilogues{0};
  for (int i = 0; i < 3; ++i) {
    OperationArguments arguments = barrier(2, 0);
    if (i == 0) arguments.timeout = milliseconds(150);
    arguments.epilogue = [&] { ++epilogues; };
    arguments.on_complete = [&](const Operation& ended) { callbacks += ended.error() != nullptr; };
    queued.push_back(group[0].submit(std::move(arguments)));
  }
  for (int i = 2; i >= 0; --i) {
    const auto error = caught([&] { group[0].wait(queued[i], milliseconds(0)); });
    CHECK_ERROR(error, kTimeout,
                error->peer == 1 && error->sequence == static_cast<uint64_t>(i + 1) &&
                    has(error, "not begun, because an earlier operation failed") == (i > 0));
    CHECK(queued[i]->done() && queued[i]->error() != nullptr);
  }
  while (callbacks < 3) std::this_thread::yield();
  CHECK(callbacks == 3 && epilogues == 0);
}

void pending_operations_end_with_the_group() {
  const Group group(2);
  std::atomic<int> callbacks{0};
  const auto pending = [&] {
    OperationArguments arguments = barrier(2, 0);
    arguments.on_complete = [&](const Operation& ended) { callbacks += ended.error() != nullptr; };
    return group[0].submit(std::move(arguments));
  };
  const auto first = pending();
  const auto second = pending();
  std::thread waiter([&] {
    const auto error = caught([&] { group[0].wait(second, milliseconds(0)); });
    CHECK_ERROR(error, kAborted, has(error, "barrier #2") && has(error, "destroyed"));
  });
  std::this_thread::sleep_for(milliseconds(30));
  group[0].shutdown();
  waiter.join();
  CHECK(first->done() && first->error() != nullptr && callbacks == 2);
  group[0].shutdown();
  const auto used = caught([&] { group[0].run(barrier(2, 0)); });
  CHECK_ERROR(used, kAborted, has(used, "has been destroyed"));
  CHECK_ERROR(caught([&] { group[0].submit(barrier(2, 0)); }), kAborted);
  group[0].abort("nothing to abort");

  const auto left = caught([&] { group[1].run(barrier(2, 1)); });
  CHECK_ERROR(left, kPeerLost, left->peer == 0 && has(left, "rank 0 ended or destroyed the group"));
}

// Whoever has finished may go; the others still finish.
void a_rank_that_is_done_may_leave() {
  std::mt19937_64 random(4);
  for (int round = 0; round < 100; ++round) {
    const Group group(3);
    const uint64_t late = random() % 3, pause = random() % 300;
    group.each([&](uint32_t rank) {
      std::vector<float> data(300, static_cast<float>(rank + 1));
      if (rank == late) std::this_thread::sleep_for(std::chrono::microseconds(pause));
      const auto error = caught([&] { group[rank].run(all_reduce(3, rank, data)); });
      CHECK(!error && data[299] == 6, "round %d: %s", round, text(error));
      group[rank].shutdown();
    });
  }
}

// The store may be gone by the time a failure is to be told: that must not hide the failure.
void a_broken_store_does_not_hide_the_cause() {
  struct Broken : KeyValueStore {
    void set(const std::string&, const std::string& value) override {
      if (value.find("failed") != std::string::npos) throw std::runtime_error("connection lost");
    }
    std::optional<std::string> try_get(const std::string&) override { return std::nullopt; }
  };
  CommunicatorOptions options;
  options.shape = {2, 1, 2, 64};
  options.timeout = milliseconds(100);
  const auto group = Communicator::create(options, std::make_shared<Broken>());
  for (const bool async : {true, false}) {
    const auto error = caught([&] {
      if (async) group->wait(group->submit(barrier(2, 0)), milliseconds(5000));
      group->run(barrier(2, 0));
    });
    CHECK_ERROR(error, kTimeout, error->peer == 1 && has(error, "rank 1 to join the group"));
  }
}

// ---- arguments ----------------------------------------------------------------------------------

void wrong_arguments_harm_nobody() {
  const Group group(2);
  std::vector<float> data(8);
  const auto refused = [&](const char* words,
                           const std::function<void(OperationArguments&)>& change) {
    OperationArguments arguments = all_reduce(2, 0, data);
    change(arguments);
    const auto error = caught([&] { group[0].run(std::move(arguments)); });
    CHECK_ERROR(error, kInvalid, has(error, words));
  };
  refused("for rank 1 of 2", [](auto& a) { a.program = programs::load("all_reduce.ring", 2, 1); });
  refused("for rank 0 of 3", [](auto& a) { a.program = programs::load("all_reduce.ring", 3, 0); });
  refused("2 channels", [](auto& a) { a.program = programs::load("all_reduce.ring", 2, 0, 2); });
  refused("has not mapped",
          [](auto& a) { a.program = programs::load("all_reduce.two_shot_mapped", 2, 0); });
  refused("31 bytes", [](auto& a) { a.algorithm = std::string(32, 'x'); });
  refused("needs 32", [](auto& a) { a.inputs[0].bytes = 31; });
  refused("2 output buffers, needs 1", [](auto& a) { a.outputs.push_back(a.outputs[0]); });
  refused("needs 3 slots", [](auto& a) {
    programs::Bytes bytes = programs::read("all_reduce.ring", 2, 0);
    bytes[52] = std::byte{3};
    a.program = Program::parse(bytes);
  });
  CHECK(group[0].sequence() == 0 && !group[0].failure());
  group.each([&](uint32_t rank) {
    std::vector<float> mine(8, static_cast<float>(rank + 1));
    group[rank].run(all_reduce(2, rank, mine));
    CHECK(mine[0] == 3);
  });
}

// The reduction is looked up only when the operation runs: every rank must learn of it.
void an_undefined_reduction_is_an_error() {
  const Group group(2);
  group.each([&](uint32_t rank) {
    std::vector<float> data(8);
    OperationArguments arguments = all_reduce(2, rank, data);
    arguments.redop = RedOp::kBand;
    const auto error = caught([&] { group[rank].run(std::move(arguments)); });
    CHECK(error && (error->kind == ErrorKind::kInvalid || error->kind == ErrorKind::kSystem), "%s",
          text(error));
  });
}

// ---- long runs ----------------------------------------------------------------------------------

// The board of headers has two entries, used in turn: ranks that run ahead must not spoil them.
void many_operations_with_random_delays() {
  const Group group(3);
  group.each([&](uint32_t rank) {
    std::mt19937_64 random(rank);
    const auto program = programs::load("all_reduce.two_shot", 3, rank);
    std::vector<float> data(4);
    for (int i = 0; i < 10'000; ++i) {
      if (random() % 200 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 100));
      }
      for (uint32_t k = 0; k < 4; ++k) data[k] = static_cast<float>((i + k) * (rank + 1));
      group[rank].run(call("two_shot", program, DType::kFloat32, data));
      for (uint32_t k = 0; k < 4; ++k) {
        if (data[k] == static_cast<float>((i + k) * 6)) continue;
        CHECK(false, "operation %d, rank %u, element %u is %g", i, rank, k, data[k]);
        return;
      }
    }
  });
}

void a_world_of_one() {
  const Group group(1);
  std::vector<float> data(1000, 3);
  OperationArguments arguments = all_reduce(1, 0, data);
  arguments.redop = RedOp::kAvg;
  group[0].run(std::move(arguments));
  group[0].run(barrier(1, 0));
  group[0].wait(group[0].submit(all_reduce(1, 0, data)), milliseconds(0));
  CHECK(data[0] == 3 && data[999] == 3 && group[0].sequence() == 3);
  std::vector<float> out(1000);
  arguments = call("ring", programs::load("all_gather.ring", 1, 0), DType::kFloat32, data);
  arguments.outputs = {{out.data(), 4000}};
  group[0].run(std::move(arguments));
  CHECK(out == data);
  group[0].abort("enough");
  CHECK_ERROR(caught([&] { group[0].run(barrier(1, 0)); }), kAborted);
}

}  // namespace

int main() {
  mismatches_are_errors_on_every_rank();
  a_call_too_many_is_an_error();
  timeouts_name_who_is_missing();
  an_operation_may_have_its_own_timeout();
  a_stuck_operation_says_on_what();
  abort_reaches_everybody();
  what_is_queued_behind_a_failure_fails();
  pending_operations_end_with_the_group();
  a_rank_that_is_done_may_leave();
  a_broken_store_does_not_hide_the_cause();
  wrong_arguments_harm_nobody();
  an_undefined_reduction_is_an_error();
  many_operations_with_random_delays();
  a_world_of_one();
  return check_status();
}
