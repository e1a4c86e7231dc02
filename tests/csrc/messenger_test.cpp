// That messages arrive whole, at the receive that they fit, in every order of calls.
#include <atomic>
#include <random>

#include "check.h"
#include "mail.h"

namespace {

using namespace mail;

// ---- the checker --------------------------------------------------------------------------------

void the_checker_finds_a_planted_fault() {
  const Office office(2);
  Bytes out = pattern(1, 1000), in(1000);
  std::thread sender([&] { office[0].run(send_to(1, out)); });
  office[1].run(recv_from(0, in));
  sender.join();
  CHECK(difference(in, 1).empty());
  CHECK(!difference(in, 2).empty());
  in[777] ^= std::byte{1};
  CHECK(difference(in, 1) == "byte 777 of message 1", "%s", difference(in, 1).c_str());
}

// ---- sizes --------------------------------------------------------------------------------------

void every_size_arrives() {
  for (const uint64_t slot : {64u, 128u, 4096u}) {
    const std::vector<uint64_t> sizes = {
        0,        1,         63,        64,        65,       slot - 1,     slot,
        slot + 1, slot + 63, slot + 64, slot + 65, 5 * slot, 9 * slot + 1, 40 * slot - 64};
    const Office office(2, slot);
    office.each([&](uint32_t rank) {
      for (size_t i = 0; i < sizes.size(); ++i) {
        if (rank == 0) {
          Bytes out = pattern(i, sizes[i]);
          office[0].run(send_to(1, out));
          // The buffer is the caller's again.
          std::fill(out.begin(), out.end(), std::byte{0xee});
        } else {
          Bytes in(sizes[i]);
          const auto message = office[1].run(recv_from(0, in));
          CHECK(difference(in, i).empty(), "slots of %zu: %s", static_cast<size_t>(slot),
                difference(in, i).c_str());
          CHECK(message->source() == 0 && message->bytes() == sizes[i] &&
                message->sequence() == i + 1);
        }
      }
    });
  }
}

// ---- tags and sources ---------------------------------------------------------------------------

void a_message_overtakes_others() {
  for (const uint64_t size : {0u, 10u, 200u, 3000u}) {
    const Office office(2);
    office.each([&](uint32_t rank) {
      if (rank == 0) {
        const std::pair<int, uint64_t> messages[] = {{1, 10}, {2, 20}, {1, 11}, {3, 30}};
        for (const auto& [tag, seed] : messages) {
          Bytes out = pattern(seed, size);
          office[0].run(send_to(1, out, tag));
        }
        return;
      }
      const auto expect = [&](int source, int tag, uint64_t seed) {
        Bytes in(size);
        office[1].run(recv_from(source, in, tag));
        CHECK(difference(in, seed).empty(), "%s", difference(in, seed).c_str());
      };
      expect(0, 3, 30);
      expect(kAny, 2, 20);
      // Two with one tag keep their order.
      expect(0, 1, 10);
      expect(0, 1, 11);
    });
  }
}

// Receives are posted before anything comes, or after, or between; the first that fits gets it.
void receives_match_in_the_order_of_posting() {
  const Office office(2, 128);
  constexpr int kCount = 40;
  std::vector<Bytes> in(kCount, Bytes(300));
  std::vector<std::shared_ptr<Message>> receives;
  for (int i = 0; i < kCount / 2; ++i) {
    receives.push_back(office[1].submit(recv_from(i % 3 == 0 ? kAny : 0, in[i], i % 2)));
  }
  std::thread sender([&] {
    for (int i = 0; i < kCount; ++i) {
      Bytes out = pattern(i, 300);
      office[0].run(send_to(1, out, i % 2));
    }
  });
  for (int i = kCount / 2; i < kCount; ++i) {
    receives.push_back(office[1].submit(recv_from(i % 3 == 0 ? kAny : 0, in[i], i % 2)));
  }
  for (int i = kCount - 1; i >= 0; --i) {
    office[1].wait(receives[i], kForever);
    CHECK(difference(in[i], i).empty() && receives[i]->source() == 0, "%s",
          difference(in[i], i).c_str());
  }
  sender.join();
}

void any_source_takes_from_all() {
  constexpr uint32_t kWorld = 5;
  constexpr int kEach = 30;
  const Office office(kWorld, 128);
  office.each([&](uint32_t rank) {
    if (rank != 2) {
      for (int i = 0; i < kEach; ++i) {
        Bytes out = pattern(rank * 100 + i, 50 * i);
        office[rank].run(send_to(2, out, i));
      }
      return;
    }
    // For each tag one message comes from each of the others.
    for (int i = 0; i < kEach; ++i) {
      std::vector<int> seen(kWorld, 0);
      for (uint32_t k = 1; k < kWorld; ++k) {
        Bytes in(50 * i);
        const auto message = office[2].run(recv_from(kAny, in, i));
        const int source = message->source();
        CHECK(source >= 0 && source < static_cast<int>(kWorld) && ++seen[source] == 1);
        CHECK(difference(in, source * 100 + i).empty(), "%s",
              difference(in, source * 100 + i).c_str());
      }
      CHECK(seen[2] == 0);
    }
  });
}

void more_peers_than_bells() {
  constexpr uint32_t kWorld = 70;
  static_assert(kWorld > kMaxBells + 1);
  const Office office(kWorld, 64);
  std::thread senders([&] {
    for (uint32_t rank = kWorld - 1; rank > 0; --rank) {
      // Now and then the receiver has gone to sleep.
      if (rank % 8 == 0) std::this_thread::sleep_for(milliseconds(2));
      Bytes out = pattern(rank, 10);
      office[rank].run(send_to(0, out));
    }
  });
  for (uint32_t rank = kWorld - 1; rank > 0; --rank) {
    Bytes in(10);
    const auto message = office[0].run(recv_from(kAny, in));
    CHECK(difference(in, static_cast<uint64_t>(message->source())).empty());
  }
  senders.join();
}

// ---- many at once -------------------------------------------------------------------------------

void both_send_first() {
  const Office office(2, 256, 4);
  office.each([&](uint32_t rank) {
    const uint32_t peer = 1 - rank;
    // What fits the slots needs nobody to receive it.
    Bytes out = pattern(rank, 4 * 256 - 64), in(out.size());
    office[rank].run(send_to(peer, out));
    office[rank].run(recv_from(static_cast<int>(peer), in));
    CHECK(difference(in, peer).empty());
    // More than fits does if the receives are posted.
    Bytes large = pattern(10 + rank, 100'000), incoming(large.size());
    const auto receive = office[rank].submit(recv_from(static_cast<int>(peer), incoming, 1));
    office[rank].run(send_to(peer, large, 1));
    office[rank].wait(receive, kForever);
    CHECK(difference(incoming, 10 + peer).empty());
  });
}

// Everybody to everybody, sizes and tags at random, asynchronous and not, in another order on each
// side.
void everybody_to_everybody() {
  std::mt19937_64 seeds(7);
  for (const uint64_t slot : {64u, 128u, 4096u}) {
    constexpr uint32_t kWorld = 3;
    constexpr uint64_t kEach = 60;
    const Office office(kWorld, slot, 3);
    const uint64_t base = seeds();
    const auto size_of = [&](uint64_t seed) { return (seed * 2654435761 + base) % (6 * slot); };
    office.each([&](uint32_t rank) {
      std::mt19937_64 random(base + rank);
      struct Parcel {
        Bytes bytes;
        uint64_t seed;
        MessageArguments arguments;
      };
      std::vector<Parcel> parcels;
      for (uint32_t peer = 0; peer < kWorld; ++peer) {
        if (peer == rank) continue;
        for (uint64_t i = 0; i < kEach; ++i) {
          const uint64_t out = (rank * kWorld + peer) * 1000 + i;
          const uint64_t in = (peer * kWorld + rank) * 1000 + i;
          parcels.push_back({pattern(out, size_of(out)), 0, {}});
          parcels.push_back({Bytes(size_of(in)), in, {}});
          parcels[parcels.size() - 2].arguments =
              send_to(peer, parcels[parcels.size() - 2].bytes, static_cast<int>(i));
          parcels.back().arguments =
              recv_from(static_cast<int>(peer), parcels.back().bytes, static_cast<int>(i));
        }
      }
      std::shuffle(parcels.begin(), parcels.end(), random);
      std::vector<std::shared_ptr<Message>> messages;
      std::atomic<size_t> callbacks{0};
      for (Parcel& parcel : parcels) {
        parcel.arguments.on_complete = [&](const Operation& ended) {
          callbacks += ended.error() == nullptr;
        };
        messages.push_back(office[rank].submit(std::move(parcel.arguments)));
        if (random() % 50 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      for (size_t i = 0; i < messages.size(); ++i) {
        office[rank].wait(messages[i], kForever);
        if (!messages[i]->receives()) continue;
        CHECK(difference(parcels[i].bytes, parcels[i].seed).empty(), "slots of %zu: %s",
              static_cast<size_t>(slot), difference(parcels[i].bytes, parcels[i].seed).c_str());
      }
      while (callbacks < messages.size()) std::this_thread::yield();
    });
  }
}

// A rank that is blocked on one peer goes on with another.
void a_slow_peer_holds_up_nobody() {
  const Office office(3, 128);
  Bytes large = pattern(1, 10'000), in_large(10'000);
  const auto blocked = office[0].submit(send_to(1, large));
  for (int i = 0; i < 50; ++i) {
    Bytes out = pattern(2, 500), in(500);
    std::thread sender([&] { office[0].run(send_to(2, out)); });
    office[2].run(recv_from(0, in));
    sender.join();
    CHECK(difference(in, 2).empty() && !blocked->done());
  }
  office[1].run(recv_from(0, in_large));
  office[0].wait(blocked, kForever);
  CHECK(difference(in_large, 1).empty());
}

// Several threads of one rank send and receive at once.
void threads_of_one_rank() {
  const Office office(2, 128);
  office.each([&](uint32_t rank) {
    std::vector<std::thread> threads;
    for (int tag = 0; tag < 4; ++tag) {
      threads.emplace_back([&, tag] {
        for (int i = 0; i < 50; ++i) {
          const uint64_t seed = static_cast<uint64_t>(tag * 100 + i);
          Bytes bytes = rank == 0 ? pattern(seed, 333) : Bytes(333);
          office[rank].run(rank == 0 ? send_to(1, bytes, tag) : recv_from(0, bytes, tag));
          CHECK(difference(bytes, seed).empty(), "%s", difference(bytes, seed).c_str());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

// ---- joining ------------------------------------------------------------------------------------

// Each pair by itself, in one process: ranks 0 and 3 never come.
void only_those_who_talk_join() {
  const auto store = std::make_shared<LockedStore>();
  std::vector<std::shared_ptr<Messenger>> messengers;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    MessengerOptions options;
    options.group = "test";
    options.rank = rank;
    options.world = 4;
    options.slot_bytes = 128;
    messengers.push_back(Messenger::create(options, store));
  }
  const auto talk = [&](uint32_t from, uint32_t to, int source) {
    Bytes out = pattern(from, 1000), in(1000);
    std::thread sender([&] { messengers[from]->run(send_to(to, out)); });
    CHECK(messengers[to]->run(recv_from(source, in))->source() == static_cast<int>(from));
    sender.join();
    CHECK(difference(in, from).empty());
  };
  talk(1, 2, 1);
  CHECK(store->entries.size() == 5 && store->entries.count("hybridcomm/p2p/1-2/hybridcomm/shm"));
  talk(2, 1, 2);
  // Whoever receives from any opens what it must, and gets on with those who come.
  talk(2, 0, kAny);
  talk(3, 2, kAny);
  CHECK(!store->entries.count("hybridcomm/p2p/1-3/hybridcomm/shm"));
  for (auto& messenger : messengers) messenger->shutdown();
  CHECK(store->entries["hybridcomm/p2p/state/3"] == "left");
}

}  // namespace

int main() {
  the_checker_finds_a_planted_fault();
  every_size_arrives();
  a_message_overtakes_others();
  receives_match_in_the_order_of_posting();
  any_source_takes_from_all();
  more_peers_than_bells();
  both_send_first();
  everybody_to_everybody();
  a_slow_peer_holds_up_nobody();
  threads_of_one_rank();
  only_those_who_talk_join();
  return check_status();
}
