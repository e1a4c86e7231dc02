// Joining a group among the dead: entries and cards of the past, and ranks that die on the way.
#include <sys/wait.h>

#include <csignal>

#include "check.h"
#include "driver/ranks.h"
#include "driver/workload.h"
#include "parties.h"
#include "transports/shm/card.h"

namespace {

using namespace parties;

// ---- entries and cards of the past --------------------------------------------------------------

int64_t now_ns() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

void old_entries() {
  const auto fresh_leader_follows = [](const char* name,
                                       const std::function<void(MapStore&)>& old) {
    leaves_nothing(name, [&] {
      const auto store = std::make_shared<MapStore>();
      old(*store);
      Party follower(1, store);
      idle({&follower});
      CHECK(!follower.over(), "%s", follower.message());
      Party leader(0, store);
      CHECK(drive({&leader, &follower}) && leader.done && follower.done, "%s, %s", leader.message(),
            follower.message());
    });
  };
  fresh_leader_follows("a listener that is gone",
                       [](MapStore& store) { store.set(kKey, "1 open hybridcomm-nobody 1-2"); });
  fresh_leader_follows("a reason from long before this group", [](MapStore& store) {
    store.set(kKey, "1 failed 2 1 " + std::to_string(now_ns() - 120'000'000'000) + " long ago");
  });
  const std::string recent = "1 failed 2 1 " + std::to_string(now_ns() - 1'000'000) + " just now";
  leaves_nothing("a reason from before this rank made the group", [&] {
    const auto store = std::make_shared<MapStore>();
    store->set(kKey, recent);
    Party follower(1, store);
    CHECK(drive({&follower}));
    CHECK(follower.raised(ErrorKind::kTimeout, "just now"), "%s", follower.message());
  });
  fresh_leader_follows("a reason that this process has raised before",
                       [&](MapStore& store) { store.set(kKey, recent); });
  fresh_leader_follows("reasons that make no sense", [](MapStore& store) {
    store.set(kKey, "1 failed 77 1 " + std::to_string(now_ns() + 1'000'000'000) + " what?");
  });
  leaves_nothing("a listener that hangs up, then the real one", [] {
    const auto store = std::make_shared<MapStore>();
    Party follower(1, store);
    {
      FakeLeader old(*store);
      old.meet(follower);
    }
    idle({&follower});
    CHECK(!follower.over(), "%s", follower.message());
    Party leader(0, store);
    CHECK(drive({&leader, &follower}) && leader.done && follower.done, "%s", follower.message());
  });
  for (const char* entry : {"2 open hybridcomm-x 1-2", "1 shut hybridcomm-x 1-2",
                            "1 open hybridcomm-x 1-2-3", "1 open hybridcomm-x", "rubbish"}) {
    leaves_nothing(entry, [entry] {
      const auto store = std::make_shared<MapStore>();
      store->set(kKey, entry);
      Party follower(1, store);
      CHECK(drive({&follower}));
      CHECK(follower.raised(ErrorKind::kMismatch, "version"), "%s", follower.message());
    });
  }
}

// This process's card with one field replaced: 1 pid, 2 start, 3 host, 4 network, 5 pid namespace.
std::string card(uint32_t rank, int field = -1, const std::string& value = "") {
  MapStore store;
  Card::leave(rank, store);
  std::istringstream in(store.entries.begin()->second);
  std::string text, word;
  for (int i = 0; in >> word; ++i) text += (i == 0 ? "" : " ") + (i == field ? value : word);
  return text;
}

void cards() {
  const auto with_card = [](const char* name, uint32_t owner, const std::string& text,
                            const std::function<void(Party&, MapStore&)>& then) {
    leaves_nothing(name, [&] {
      const auto store = std::make_shared<MapStore>();
      store->set("hybridcomm/card/" + std::to_string(owner), text);
      Party waiter(1 - owner, store);
      then(waiter, *store);
    });
  };
  for (const uint32_t owner : {0u, 1u}) {
    const std::string who = "rank " + std::to_string(owner);
    const auto fails = [&](ErrorKind kind, const std::string& text) {
      return [=](Party& waiter, MapStore&) {
        const auto before = Clock::now();
        CHECK(drive({&waiter}, milliseconds(1000)));
        CHECK(waiter.raised(kind, who + text), "%s", waiter.message());
        CHECK(Clock::now() - before < milliseconds(1000));
      };
    };
    const auto waits = [](Party& waiter, MapStore&) {
      idle({&waiter}, milliseconds(400));
      CHECK(!waiter.over(), "%s", waiter.message());
    };
    with_card("another host", owner, card(owner, 3, "elsewhere"),
              fails(ErrorKind::kInvalid, " runs on another host"));
    with_card("another network namespace", owner, card(owner, 4, "1"),
              fails(ErrorKind::kInvalid, " runs in another network namespace"));
    with_card("a process that never was", owner, card(owner, 1, "2147483647"),
              fails(ErrorKind::kPeerLost, " died before it joined"));
    with_card("a number that was used again", owner, card(owner, 2, "1"),
              fails(ErrorKind::kPeerLost, " died before it joined"));
    with_card("another pid namespace: nothing is known", owner, card(owner, 5, "1"), waits);
    with_card("a card of the future", owner, "2 what ever", waits);
    with_card("a living process", owner, card(owner), waits);
    with_card("an old card, replaced in time", owner, card(owner, 2, "1"),
              [&](Party& waiter, MapStore& store) {
                idle({&waiter}, milliseconds(100));
                store.set("hybridcomm/card/" + std::to_string(owner), card(owner));
                idle({&waiter}, milliseconds(400));
                CHECK(!waiter.over(), "%s", waiter.message());
              });
  }
  // A forked child may keep the listener of a dead rank 0 open: the connection succeeds, and only
  // the card tells that nobody will answer.
  with_card("a dead leader whose listener lives", 0, card(0, 1, "2147483647"),
            [](Party& follower, MapStore& store) {
              FakeLeader deaf(store);
              CHECK(drive({&follower}, milliseconds(1000)));
              CHECK(follower.raised(ErrorKind::kPeerLost, "rank 0 died"), "%s", follower.message());
            });
}

// ---- processes ----------------------------------------------------------------------------------

void deaths() {
  leaves_nothing("a rank that dies before it joins", [] {
    const auto table = std::make_unique<driver::SharedMemory<driver::SharedTable>>();
    const auto store = std::make_shared<driver::SharedStore>(**table);
    const pid_t child = driver::start_process([&] {
      Card::leave(1, *store);
      return 0;
    });
    Party leader(0, store);
    CHECK(waitpid(child, nullptr, 0) == child);
    const auto before = Clock::now();
    CHECK(drive({&leader}, milliseconds(2000)));
    CHECK(leader.raised(ErrorKind::kPeerLost, "rank 1 died before it joined", 1), "%s",
          leader.message());
    CHECK(Clock::now() - before < milliseconds(1000));
  });
  // Somebody else keeps the dead rank's socket open, so that the leader sees no end of it.
  leaves_nothing("a rank that dies after its hello", [] {
    const auto store = std::make_shared<MapStore>();
    Party leader(0, store);
    const pid_t child = driver::start_process([] { return pause(); });
    const Descriptor socket = call(*store);
    const Descriptor pidfd = pidfd_of(child);
    say(socket, bytes_of(hello(*store)), {pidfd.get()});
    idle({&leader});
    CHECK(!leader.over());
    kill(child, SIGKILL);
    const auto before = Clock::now();
    CHECK(drive({&leader}));
    CHECK(leader.raised(ErrorKind::kPeerLost, "rank 1 died while joining", 1), "%s",
          leader.message());
    CHECK(Clock::now() - before < milliseconds(200));
    waitpid(child, nullptr, 0);
  });
  leaves_nothing("rank 0 dies after its welcome", [] {
    const auto store = std::make_shared<MapStore>();
    const pid_t child = driver::start_process([] { return pause(); });
    const Descriptor pidfd = pidfd_of(child);
    FakeLeader leader(*store);
    Party follower(1, store);
    leader.meet(follower);
    const Descriptor memory = spoiled([](RegionHeader&) {});
    say(leader.socket, bytes_of(RawWelcome()), {memory.get(), pidfd.get()});
    idle({&follower});
    CHECK(!follower.over(), "%s", follower.message());
    kill(child, SIGKILL);
    CHECK(drive({&follower}));
    CHECK(follower.raised(ErrorKind::kPeerLost, "died while the group was being joined", 0), "%s",
          follower.message());
    waitpid(child, nullptr, 0);
  });
  leaves_nothing("rank 0 hangs up after its welcome", [] {
    const auto store = std::make_shared<MapStore>();
    FakeLeader leader(*store);
    Party follower(1, store);
    leader.meet(follower);
    const Descriptor memory = spoiled([](RegionHeader&) {});
    say(leader.socket, bytes_of(RawWelcome()), {memory.get(), Process::self()->pidfd()});
    idle({&follower});
    leader.socket.reset();
    CHECK(drive({&follower}));
    CHECK(follower.raised(ErrorKind::kPeerLost, "gave up", 0), "%s", follower.message());
  });
}

void the_store_of_forked_ranks_replaces() {
  const driver::SharedMemory<driver::SharedTable> table;
  driver::SharedStore store(*table);
  store.set("key", "old");
  store.set("other", "value");
  store.set("key", "new");
  CHECK(store.try_get("key") == "new" && store.try_get("other") == "value");
  CHECK(!store.try_get("none"));
}

// Forked ranks that meet, each in its own process.
void many_ranks(uint32_t world) {
  leaves_nothing("many ranks", [world] {
    const Shape shape{world, 1, 2, 64};
    const auto table = std::make_unique<driver::SharedMemory<driver::SharedTable>>();
    std::vector<pid_t> children;
    for (uint32_t rank = 0; rank < world; ++rank) {
      children.push_back(driver::start_process([&] {
        Party party(rank, std::make_shared<driver::SharedStore>(**table), shape);
        const bool joined = drive({&party}, milliseconds(20'000)) && party.done;
        CHECK(joined, "rank %u: %s", rank, party.message());
        if (joined) CHECK(party.join->take().processes.size() == world);
        return check_status();
      }));
    }
    for (const pid_t child : children) {
      int status = 0;
      waitpid(child, &status, 0);
      CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
  });
}

}  // namespace

int main() {
  the_store_of_forked_ranks_replaces();
  many_ranks(5);
  old_entries();
  cards();
  deaths();
  return check_status();
}
