// The sides of a join, honest and other, for tests: all driven from one thread, because Join never
// blocks. The packets of strangers are laid out here anew, not with the types of join.cpp.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "transports/shm/join.h"
#include "transports/shm/socket.h"

namespace parties {

using namespace hybridcomm;
using namespace hybridcomm::shm;
using std::chrono::milliseconds;

inline constexpr char kKey[] = "hybridcomm/shm";
inline const Shape kShape{2, 1, 2, 64};

struct MapStore : KeyValueStore {
  std::map<std::string, std::string> entries;
  void set(const std::string& key, const std::string& value) override { entries[key] = value; }
  std::optional<std::string> try_get(const std::string& key) override {
    const auto at = entries.find(key);
    return at == entries.end() ? std::nullopt : std::optional(at->second);
  }
};

// ---- the two sides ------------------------------------------------------------------------------

// One rank's Join, with what became of it.
struct Party {
  uint32_t rank;
  std::shared_ptr<KeyValueStore> store;
  std::unique_ptr<Join> join;
  bool done = false;
  std::optional<ErrorInfo> error;

  Party(uint32_t rank, std::shared_ptr<KeyValueStore> store, Shape shape = kShape)
      : rank(rank), store(store), join(Join::start(rank, shape, store, Clock::now())) {}
  void step() {
    if (done || error) return;
    try {
      done = join->advance();
    } catch (const CommError& caught) {
      error = caught.info();
      if (rank == 0) Join::give_up(*store, *error);
    }
  }
  bool over() const { return done || error.has_value(); }
  bool raised(ErrorKind kind, const std::string& text, int peer = -1) const {
    return error && error->kind == kind && (peer < 0 || error->peer == peer) &&
           error->message.find(text) != std::string::npos;
  }
  const char* message() const { return error ? error->message.c_str() : done ? "done" : "waits"; }
};

// Turn by turn, until `enough()`; false if that takes too long.
template <class Predicate>
bool drive(std::initializer_list<Party*> parties, milliseconds at_most, Predicate enough) {
  const auto until = Clock::now() + at_most;
  while (!enough()) {
    if (Clock::now() > until) return false;
    for (Party* party : parties) party->step();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

// Until all of them have joined or failed.
inline bool drive(std::initializer_list<Party*> parties,
                  milliseconds at_most = milliseconds(5000)) {
  return drive(parties, at_most, [&] {
    return std::all_of(parties.begin(), parties.end(), [](Party* p) { return p->over(); });
  });
}

// For a moment, in which nobody may join or fail.
inline void idle(std::initializer_list<Party*> parties, milliseconds length = milliseconds(15)) {
  drive(parties, length, [] { return false; });
}

// ---- strangers ----------------------------------------------------------------------------------

// What every packet begins with; `kind` is 1 Hello, 2 Welcome, 3 Refusal, 4 Mapped, 5 Members.
struct Prefix {
  uint64_t magic = kMagic;
  uint32_t kind = 0;
  uint32_t version = 1;
};

struct RawHello {
  Prefix prefix{kMagic, 1, 1};
  uint32_t rank = 1, reserved = 0;
  uint32_t world = 2, channels = 1, slots = 2, padding = 0;
  uint64_t slot_bytes = 64;
  uint64_t token[2] = {};
  uint64_t identity[2] = {5, 6};
  uint64_t proof = 7;
};
static_assert(sizeof(RawHello) == 88);

struct RawWelcome {
  Prefix prefix{kMagic, 2, 1};
  uint64_t identity[2] = {8, 9};
};

struct RawMembers {
  Prefix prefix{kMagic, 5, 1};
  uint32_t first = 0, count = 2;
  uint64_t identities[4] = {8, 9, 5, 6};
};

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span<const T>(&value, 1));
}

// What the leader's entry in the store says.
struct Entry {
  std::string version, state, name;
  unsigned long long token[2] = {};

  explicit Entry(KeyValueStore& store) {
    std::string hex;
    std::istringstream fields(store.try_get(kKey).value_or(""));
    fields >> version >> state >> name >> hex;
    std::sscanf(hex.c_str(), "%llx-%llx", &token[0], &token[1]);
  }
};

// A Hello that knows the token.
inline RawHello hello(KeyValueStore& store) {
  RawHello hello;
  const Entry entry(store);
  hello.token[0] = entry.token[0];
  hello.token[1] = entry.token[1];
  return hello;
}

inline Descriptor call(KeyValueStore& store) { return connect_abstract(Entry(store).name); }

inline Descriptor pidfd_of(pid_t pid) { return Descriptor(static_cast<int>(syscall(434, pid, 0))); }

inline bool say(const Descriptor& socket, std::span<const std::byte> bytes,
                std::initializer_list<int> fds) {
  return send(socket, bytes, std::span(fds.begin(), fds.size()));
}

// What a rank hears that was turned away: the sentence of a Refusal, or "closed", or "nothing".
inline std::string answer(const Descriptor& socket) {
  Packet packet;
  switch (receive(socket, packet)) {
    case Receipt::kNothing: return "nothing";
    case Receipt::kClosed: return "closed";
    case Receipt::kPacket: break;
  }
  Prefix prefix;
  std::memcpy(&prefix, packet.bytes.data(), sizeof(prefix));
  if (prefix.kind != 3) return "packet";
  return std::string(reinterpret_cast<const char*>(packet.bytes.data()) + sizeof(prefix),
                     packet.bytes.size() - sizeof(prefix));
}

// ---- a leader that lies ------------------------------------------------------------------------

// A listener that says what the test wants.
struct FakeLeader {
  Descriptor listener = listen_abstract("hybridcomm-fake-" + std::to_string(getpid()));
  Descriptor socket;

  explicit FakeLeader(KeyValueStore& store) {
    store.set(kKey, "1 open hybridcomm-fake-" + std::to_string(getpid()) + " 1-2");
  }
  // Takes the follower's Hello.
  void meet(Party& follower) {
    Packet packet;
    const bool met = drive({&follower}, milliseconds(2000), [&] {
      if (!socket) socket = accept_peer(listener);
      return socket && receive(socket, packet) == Receipt::kPacket;
    });
    CHECK(met && packet.bytes.size() == sizeof(RawHello) && packet.descriptors.size() == 1);
  }
};

// A memfd that is right but for what `spoil` does to its header.
inline Descriptor spoiled(const std::function<void(RegionHeader&)>& spoil) {
  int fd = -1;
  const auto region = Region::create_memfd(kShape, fd);
  spoil(region->header());
  return Descriptor(fd);
}

// ---- nothing left over --------------------------------------------------------------------------

// What this process has open and mapped.
struct Belongings {
  size_t descriptors = 0, mappings = 0;

  Belongings() {
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator("/proc/self/fd")) {
      ++descriptors;
    }
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      mappings += line.find("memfd:") != std::string::npos;
    }
  }
};

// Runs one check and looks whether it leaves descriptors or mapped memory behind.
inline void leaves_nothing(const char* name, const std::function<void()>& body) {
  Process::self();  // its pidfd is there for good
  const Belongings before;
  const int failures = check::failures;
  body();
  const Belongings after;
  CHECK(after.descriptors == before.descriptors, "%zu descriptors became %zu", before.descriptors,
        after.descriptors);
  CHECK(after.mappings == before.mappings, "%zu mappings became %zu", before.mappings,
        after.mappings);
  if (check::failures != failures) std::fprintf(stderr, "  in '%s'\n", name);
}

}  // namespace parties
