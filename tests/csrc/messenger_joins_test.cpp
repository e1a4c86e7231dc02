// Messages whose pairs join as they do between processes, among ranks that leave, die or never
// come.
#include <sys/wait.h>

#include <csignal>

#include "check.h"
#include "driver/ranks.h"
#include "mail.h"
#include "transports/shm/card.h"

namespace {

using namespace mail;

// Lets the peers come to where they wait.
void a_moment() { std::this_thread::sleep_for(milliseconds(30)); }

// ---- joining ------------------------------------------------------------------------------------

// A pair joins as ranks 0 and 1 of its own; errors speak of the group's.
void ranks_that_are_set_up_differently_are_named() {
  const auto store = std::make_shared<LockedStore>();
  const auto make = [&](uint32_t rank, uint64_t slot_bytes) {
    MessengerOptions options;
    options.group = "test";
    options.rank = rank;
    options.world = 12;
    options.slot_bytes = slot_bytes;
    options.timeout = milliseconds(10'000);
    for (uint64_t i = 0; i < 12; ++i) options.global_ranks.push_back(i == 10 ? 77 : i);
    return Messenger::create(options, store);
  };
  const auto one = make(1, 128), ten = make(10, 256);
  const auto expect = [](const std::optional<ErrorInfo>& error, int peer) {
    // The other may have been first, and said so.
    if (has(error, "disagree, about a message or about their set-up")) return;
    CHECK_ERROR(error, kMismatch,
                error->peer == peer && has(error, "ranks 1 and 10 were set up differently") &&
                    has(error, "rank 1 has ") && has(error, "rank 10 (global rank 77) has "));
  };
  Bytes in(8), out(8);
  std::thread other([&] { expect(caught([&] { ten->run(send_to(1, out)); }), 1); });
  expect(caught([&] { one->run(recv_from(10, in)); }), 10);
  other.join();
}

void whoever_does_not_come_is_named() {
  const auto store = std::make_shared<LockedStore>();
  MessengerOptions options;
  options.group = "test";
  options.rank = 1;
  options.world = 3;
  const auto messenger = Messenger::create(options, store);
  Bytes bytes(8);
  for (const bool sending : {true, false}) {
    for (const uint32_t peer : {0u, 2u}) {
      MessageArguments call =
          sending ? send_to(peer, bytes) : recv_from(static_cast<int>(peer), bytes);
      call.timeout = milliseconds(60);
      const auto error = caught([&] { messenger->run(std::move(call)); });
      CHECK_ERROR(error, kTimeout,
                  error->peer == static_cast<int>(peer) &&
                      has(error, sending ? " to receive, which has not joined"
                                         : " to send, which has not joined"));
    }
  }
  CHECK(!messenger->failure());
}

// The store may be gone by the time a failure is to be told: that must not hide the failure.
void a_broken_store_does_not_hide_the_cause() {
  struct Broken : LockedStore {
    bool broken = false;
    void set(const std::string& key, const std::string& value) override {
      if (broken) throw std::runtime_error("connection lost");
      LockedStore::set(key, value);
    }
  };
  const auto store = std::make_shared<Broken>();
  MessengerOptions options;
  options.group = "test";
  options.world = 3;
  const auto messenger = Messenger::create(options, store);
  store->broken = true;
  messenger->abort("had enough");
  Bytes bytes(8);
  const auto error = caught([&] { messenger->run(recv_from(1, bytes)); });
  CHECK_ERROR(error, kAborted, has(error, "had enough"));
}

// ---- processes ----------------------------------------------------------------------------------

using driver::SharedMemory;
using driver::SharedStore;
using driver::SharedTable;

struct Stage {
  SharedTable table;
  uint32_t steps = 0;
};

bool wait_for_step(Stage& stage, uint32_t step) {
  const auto until = Clock::now() + std::chrono::seconds(10);
  while (observe(stage.steps) < step && Clock::now() < until) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  return observe(stage.steps) >= step;
}

std::shared_ptr<Messenger> join(Stage& stage, uint32_t rank, uint32_t world,
                                std::shared_ptr<KeyValueStore> store = nullptr) {
  if (store == nullptr) store = std::make_shared<SharedStore>(stage.table);
  shm::Card::leave(rank, *store);
  MessengerOptions options;
  options.group = "test";
  options.rank = rank;
  options.world = world;
  options.slot_bytes = 128;
  options.timeout = milliseconds(20'000);
  auto messenger = Messenger::create(options, store);
  // As torch does: nobody uses a group before all have made it.
  fetch_add(stage.steps, 1u);
  wait_for_step(stage, world);
  return messenger;
}

[[noreturn]] void die() {
  ::kill(getpid(), SIGKILL);
  while (true) pause();
}

// Runs body(rank) in a process for each rank; those that are not to die must return true.
void in_processes(const char* what, uint32_t world,
                  const std::function<bool(Stage&, uint32_t)>& body) {
  const SharedMemory<Stage> stage;
  std::vector<pid_t> children;
  for (uint32_t rank = 0; rank < world; ++rank) {
    children.push_back(driver::start_process([&] {
      check::failures = 0;
      const bool good = body(*stage, rank);
      return good && check::failures == 0 ? 0 : 1;
    }));
  }
  for (uint32_t rank = 0; rank < world; ++rank) {
    int status = 0;
    waitpid(children[rank], &status, 0);
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    CHECK(killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0), "%s: rank %u", what, rank);
  }
}

bool names(const std::optional<ErrorInfo>& error, int peer, milliseconds took) {
  CHECK_ERROR(error, kPeerLost, error->peer == peer);
  CHECK(took < milliseconds(1000), "%lld ms", static_cast<long long>(took.count()));
  return true;
}

// Rank 2 dies; 1 waits for it, 0 waits for 1, and 3 waits for 0. `joined`: all had talked before.
void deaths_are_noticed_along_a_chain() {
  for (const bool joined : {true, false}) {
    in_processes(joined ? "joined" : "not joined", 4, [&](Stage& stage, uint32_t rank) {
      const auto messenger = join(stage, rank, 4);
      Bytes bytes(1000);
      const uint32_t next = (rank + 1) % 4, before = (rank + 3) % 4;
      if (joined) {
        const auto sent = messenger->submit(send_to(next, bytes));
        messenger->run(recv_from(static_cast<int>(before), bytes));
        messenger->wait(sent, kForever);
      }
      if (rank == 2) {
        a_moment();
        die();
      }
      std::optional<ErrorInfo> error;
      const auto took = time_of([&] {
        error = caught([&] { messenger->run(recv_from(static_cast<int>(next), bytes)); });
      });
      return names(error, 2, took);
    });
  }
}

void a_death_is_noticed_by_whoever_takes_from_any() {
  for (const bool joined : {true, false}) {
    in_processes("any source", 3, [&](Stage& stage, uint32_t rank) {
      const auto messenger = join(stage, rank, 3);
      Bytes bytes(1000);
      if (joined && rank == 2) messenger->run(send_to(0, bytes));
      if (joined && rank == 0) messenger->run(recv_from(2, bytes));
      if (rank == 2) {
        a_moment();
        die();
      }
      if (rank == 1) {
        // It lives for as long as 0 waits: whoever ends without a word is dead as well.
        CHECK(wait_for_step(stage, 4));
        return true;
      }
      std::optional<ErrorInfo> error;
      const auto took =
          time_of([&] { error = caught([&] { messenger->run(recv_from(kAny, bytes)); }); });
      fetch_add(stage.steps, 1u);
      CHECK(joined || has(error, "rank 2 died before it joined the group"), "%s", text(error));
      return names(error, 2, took);
    });
  }
}

// Whoever leaves before it ever talked to this rank is missed only by those who name it.
void leaving_before_joining_is_no_death() {
  in_processes("left", 3, [](Stage& stage, uint32_t rank) {
    const auto messenger = join(stage, rank, 3);
    Bytes bytes = rank == 1 ? pattern(1, 100) : Bytes(100);
    if (rank == 2) {
      messenger->shutdown();
      return true;
    }
    if (rank == 1) {
      // Long enough for rank 2's process to be gone for good.
      std::this_thread::sleep_for(milliseconds(500));
      messenger->run(send_to(0, bytes, 1));
      const auto error = caught([&] { messenger->run(recv_from(2, bytes)); });
      CHECK_ERROR(error, kPeerLost,
                  error->peer == 2 && has(error, "rank 2 ended or destroyed the group"));
      return true;
    }
    CHECK(messenger->run(recv_from(kAny, bytes, 1))->source() == 1 && difference(bytes, 1).empty());
    return true;
  });
}

// Rank 0 sends and leaves in the same breath, while rank 1 looks what rank 0 says in the store and
// has still to take the last packet of the join.
void what_was_sent_before_leaving_arrives() {
  struct Slow : SharedStore {
    Stage& stage;
    explicit Slow(Stage& stage) : SharedStore(stage.table), stage(stage) {}
    std::optional<std::string> try_get(const std::string& key) override {
      // Each look takes so long that the other side of the join does all that it can meanwhile.
      const auto until = Clock::now() + milliseconds(20);
      while (key == "hybridcomm/p2p/state/0" && observe(stage.steps) < 4 && Clock::now() < until) {
        std::this_thread::yield();
      }
      return SharedStore::try_get(key);
    }
  };
  for (int round = 0; round < 3; ++round) {
    in_processes("sent and left", 3, [&](Stage& stage, uint32_t rank) {
      const auto messenger = join(stage, rank, 3, std::make_shared<Slow>(stage));
      Bytes bytes = rank == 0 ? pattern(1, 100) : Bytes(100);
      if (rank == 0) {
        messenger->run(send_to(1, bytes, 1));
        messenger->shutdown();
        fetch_add(stage.steps, 1u);
      }
      if (rank == 1) {
        messenger->run(recv_from(0, bytes, 1));
        CHECK(difference(bytes, 1).empty());
      }
      return true;
    });
  }
}

void the_last_words_of_the_dead_are_delivered() {
  in_processes("last words", 2, [](Stage& stage, uint32_t rank) {
    const auto messenger = join(stage, rank, 2);
    Bytes bytes = rank == 1 ? pattern(1, 400) : Bytes(400);
    if (rank == 1) {
      messenger->run(send_to(0, bytes, 1));
      die();
    }
    // Joins, then looks away until it has died.
    const auto other = messenger->submit(recv_from(1, bytes, 9));
    std::this_thread::sleep_for(milliseconds(1));
    CHECK_ERROR(caught([&] { messenger->wait(other, kForever); }), kPeerLost);
    return true;
  });
  in_processes("last words, taken", 2, [](Stage& stage, uint32_t rank) {
    const auto messenger = join(stage, rank, 2);
    Bytes bytes = rank == 1 ? pattern(1, 400) : Bytes(400);
    if (rank == 1) {
      messenger->run(send_to(0, bytes, 1));
      messenger->run(send_to(0, bytes, 2));
      die();
    }
    Bytes second(400);
    messenger->run(recv_from(1, second, 1));
    std::this_thread::sleep_for(milliseconds(100));
    messenger->run(recv_from(1, bytes, 2));
    CHECK(difference(bytes, 1).empty() && difference(second, 1).empty());
    return caught([&] { messenger->run(recv_from(1, bytes, 3)); }).has_value();
  });
}

}  // namespace

int main() {
  // First those that fork, while there is one thread.
  deaths_are_noticed_along_a_chain();
  a_death_is_noticed_by_whoever_takes_from_any();
  leaving_before_joining_is_no_death();
  what_was_sent_before_leaving_arrives();
  the_last_words_of_the_dead_are_delivered();
  ranks_that_are_set_up_differently_are_named();
  whoever_does_not_come_is_named();
  a_broken_store_does_not_hide_the_cause();
  return check_status();
}
