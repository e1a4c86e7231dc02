// Both sides of joining: Leader (rank 0) and Follower (every other rank).
#include "transports/shm/join.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <set>
#include <sstream>

#include "base/error.h"
#include "transports/shm/card.h"
#include "transports/shm/socket.h"

namespace hybridcomm::shm {
namespace {

// "1 open SOCKET TOKEN" or "1 failed KIND PEER NANOSECONDS MESSAGE"
constexpr char kKey[] = "hybridcomm/shm";
constexpr uint32_t kProtocol = 1;
constexpr size_t kMostArrivals = 64;
constexpr std::chrono::nanoseconds kReasonAge = std::chrono::minutes(1);
constexpr auto kStorePoll = std::chrono::milliseconds(2);

using Words = std::array<uint64_t, 2>;

enum class Kind : uint32_t { kHello = 1, kWelcome, kRefusal, kMapped, kMembers };

// Every packet begins with this.
struct Prefix {
  uint64_t magic = kMagic;
  Kind kind{};
  uint32_t version = kProtocol;
};

struct Hello {
  Prefix prefix;
  uint32_t rank = 0;
  uint32_t reserved = 0;
  Shape shape;
  Words token{};
  ProcessIdentity identity{};
  uint64_t proof = 0;
};

struct Welcome {
  Prefix prefix;
  ProcessIdentity identity{};
};

struct Mapped {
  Prefix prefix;
};

struct Members {
  Prefix prefix;
  uint32_t first = 0;
  uint32_t count = 0;
  // then ProcessIdentity[count]
};

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span<const T>(&value, 1));
}

// Reads a packet that must be exactly a T of kind `kind`.
template <class T>
bool parse(const Packet& packet, Kind kind, T& value) {
  if (packet.bytes.size() != sizeof(T)) return false;
  std::memcpy(&value, packet.bytes.data(), sizeof(T));
  return value.prefix.magic == kMagic && value.prefix.kind == kind;
}

Words random_words() {
  Words words{};
  if (getrandom(words.data(), sizeof(words), 0) != sizeof(words)) throw system_error("getrandom");
  return words;
}

std::string hex(const Words& words) {
  std::ostringstream out;
  out << std::hex << words[0] << '-' << words[1];
  return out.str();
}

bool parse_hex(const std::string& text, Words& words) {
  char tail = 0;
  unsigned long long a = 0, b = 0;
  if (std::sscanf(text.c_str(), "%llx-%llx%c", &a, &b, &tail) != 2) return false;
  words = {a, b};
  return true;
}

// std::chrono::steady_clock is CLOCK_MONOTONIC: one clock for all processes of the host.
int64_t monotonic_ns() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

std::string describe(const Shape& shape) {
  return "world size " + std::to_string(shape.world) + ", " + std::to_string(shape.channels) +
         " channels, " + std::to_string(shape.slots) + " slots of " +
         std::to_string(shape.slot_bytes) + " bytes";
}

CommError peer_lost(uint32_t rank, const std::string& how) {
  ErrorInfo info;
  info.kind = ErrorKind::kPeerLost;
  info.peer = static_cast<int>(rank);
  info.message = "rank " + std::to_string(rank) + " " + how;
  return CommError(std::move(info));
}

// "rank 2, 3 to join the group"; `peer` becomes the first of them.
std::string list_missing(const std::vector<uint32_t>& missing, int& peer) {
  if (missing.empty()) return "rank " + std::to_string(peer) + " to open the group";
  peer = static_cast<int>(missing[0]);
  std::string text;
  for (const uint32_t rank : missing) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return "rank " + text + " to join the group";
}

// Whether a rank of this process hears for the first time of what rank 0 said at `at`.
bool first_hearing(uint32_t rank, int64_t at) {
  static std::mutex mutex;
  static std::set<std::pair<uint32_t, int64_t>> heard;
  const std::lock_guard<std::mutex> lock(mutex);
  return heard.emplace(rank, at).second;
}

class Leader : public Join {
 public:
  Leader(const Shape& shape, std::shared_ptr<KeyValueStore> store)
      : shape_(shape), store_(std::move(store)), members_(shape.world) {
    for (uint32_t rank = 0; rank < shape.world; ++rank) cards_.emplace_back(rank);
    int fd = -1;
    membership_.region = Region::create_memfd(shape, fd);
    memfd_.reset(fd);
    membership_.processes.assign(shape.world, nullptr);
    membership_.processes[0] = Process::self();
    store_control(membership_.region->control(0));
    const std::string name = "hybridcomm-" + hex(random_words());
    listener_ = listen_abstract(name);
    token_ = random_words();
    store_->set(kKey, "1 open " + name + " " + hex(token_));
  }

  bool advance() override {
    while (Descriptor socket = accept_peer(listener_)) {
      // A rank says who it is as soon as it is connected; a crowd that says nothing must not use up
      // our descriptors. Whoever is hung up on by mistake comes again.
      if (arrivals_.size() == kMostArrivals) arrivals_.erase(arrivals_.begin());
      arrivals_.push_back(std::move(socket));
      std::erase_if(arrivals_, [this](Descriptor& arrival) { return greet(arrival); });
    }
    std::erase_if(arrivals_, [this](Descriptor& socket) { return greet(socket); });
    uint32_t mapped = 1;
    for (uint32_t rank = 1; rank < shape_.world; ++rank) {
      Member& member = members_[rank];
      if (!member.socket) {
        cards_[rank].watch(*store_);
      } else if (!member.mapped) {
        hear(rank, member);
      }
      if (member.mapped) ++mapped;
    }
    if (mapped < shape_.world) return false;
    for (uint32_t rank = 1; rank < shape_.world; ++rank) introduce(rank, members_[rank].socket);
    return true;
  }

  std::string waiting_for(int& peer) const override {
    peer = 0;
    std::vector<uint32_t> missing;
    for (uint32_t rank = 1; rank < shape_.world; ++rank) {
      if (!members_[rank].mapped) missing.push_back(rank);
    }
    return list_missing(missing, peer);
  }

 private:
  struct Member {
    Descriptor socket;
    uint64_t proof = 0;
    bool mapped = false;
  };

  static void store_control(RankControl& control) {
    store_release(control.state, static_cast<uint32_t>(RankState::kJoined));
  }

  // Reads a Hello. True if the socket is no longer an arrival.
  bool greet(Descriptor& socket) {
    Packet packet;
    const Receipt receipt = receive(socket, packet);
    if (receipt == Receipt::kNothing) return false;
    if (receipt == Receipt::kClosed) return true;
    Hello hello;
    // Whoever does not know the token is a stranger: no answer, no error, the job goes on.
    if (!parse(packet, Kind::kHello, hello) || hello.token != token_) return true;
    if (packet.descriptors.size() != 1) return true;
    if (hello.rank == 0 || hello.rank >= shape_.world || members_[hello.rank].socket) {
      refuse(socket, "rank " + std::to_string(hello.rank) +
                         " is taken, or not within the world size of " +
                         std::to_string(shape_.world));
      return true;
    }
    if (hello.prefix.version != kProtocol || !(hello.shape == shape_)) {
      const std::string why =
          "ranks 0 and " + std::to_string(hello.rank) + " were set up differently: rank 0 has " +
          describe(shape_) + " (protocol " + std::to_string(kProtocol) + "), rank " +
          std::to_string(hello.rank) + " has " + describe(hello.shape) + " (protocol " +
          std::to_string(hello.prefix.version) +
          "). Give all ranks the same hybridcomm version, options and HYBRIDCOMM_ variables";
      refuse(socket, why);
      ErrorInfo info;
      info.kind = ErrorKind::kMismatch;
      info.peer = static_cast<int>(hello.rank);
      info.message = why;
      throw CommError(std::move(info));
    }
    Member& member = members_[hello.rank];
    try {
      membership_.processes[hello.rank] =
          Process::adopt(hello.identity, packet.descriptors[0].release());
    } catch (const CommError& error) {
      refuse(socket, error.what());
      return true;
    }
    member.proof = hello.proof;
    member.socket = std::move(socket);
    Welcome welcome;
    welcome.prefix.kind = Kind::kWelcome;
    welcome.identity = Process::self()->identity();
    const int fds[] = {memfd_.get(), Process::self()->pidfd()};
    if (!send(member.socket, bytes_of(welcome), fds)) throw lost(hello.rank);
    return true;
  }

  static void refuse(const Descriptor& socket, const std::string& why) {
    Prefix prefix;
    prefix.kind = Kind::kRefusal;
    std::vector<std::byte> bytes(bytes_of(prefix).begin(), bytes_of(prefix).end());
    for (const char c : why) bytes.push_back(static_cast<std::byte>(c));
    send(socket, bytes, {});
  }

  void hear(uint32_t rank, Member& member) {
    Packet packet;
    Mapped mapped;
    switch (receive(member.socket, packet)) {
      case Receipt::kNothing:
        if (!membership_.processes[rank]->alive()) throw lost(rank);
        return;
      case Receipt::kClosed: throw lost(rank);
      case Receipt::kPacket: break;
    }
    RankControl& control = membership_.region->control(rank);
    const uint64_t echo = membership_.region->header().nonce ^ member.proof;
    if (!parse(packet, Kind::kMapped, mapped) || load_acquire(control.proof) != echo) {
      throw CommError(ErrorKind::kSystem, "rank " + std::to_string(rank) +
                                              " could not prove that it shares memory with rank 0");
    }
    member.mapped = true;
  }

  void introduce(uint32_t rank, const Descriptor& socket) {
    for (uint32_t first = 0; first < shape_.world; first += kMaxDescriptors) {
      Members members;
      members.prefix.kind = Kind::kMembers;
      members.first = first;
      members.count = std::min<uint32_t>(kMaxDescriptors, shape_.world - first);
      std::vector<std::byte> bytes(bytes_of(members).begin(), bytes_of(members).end());
      std::vector<int> fds;
      for (uint32_t i = first; i < first + members.count; ++i) {
        const auto identity = bytes_of(membership_.processes[i]->identity());
        bytes.insert(bytes.end(), identity.begin(), identity.end());
        fds.push_back(membership_.processes[i]->pidfd());
      }
      if (!send(socket, bytes, fds)) throw lost(rank);
    }
  }

  CommError lost(uint32_t rank) const {
    return peer_lost(rank, membership_.processes[rank]->alive() ? "gave up joining the group"
                                                                : "died while joining the group");
  }

  Shape shape_;
  std::shared_ptr<KeyValueStore> store_;
  Descriptor memfd_;
  Descriptor listener_;
  Words token_{};
  std::vector<Descriptor> arrivals_;
  std::vector<Member> members_;
  std::vector<Card> cards_;
};

class Follower : public Join {
 public:
  Follower(uint32_t rank, const Shape& shape, std::shared_ptr<KeyValueStore> store,
           Clock::time_point created)
      : rank_(rank),
        shape_(shape),
        store_(std::move(store)),
        created_ns_(std::chrono::nanoseconds(created.time_since_epoch()).count()) {
    membership_.processes.assign(shape.world, nullptr);
    proof_ = random_words()[0];
  }

  bool advance() override {
    if (!socket_ && !connect()) {
      leader_.watch(*store_);
      return false;
    }
    Packet packet;
    switch (receive(socket_, packet)) {
      case Receipt::kNothing:
        if (membership_.region == nullptr) {
          // A forked child may keep the dead rank 0's listener open: only the card tells.
          leader_.watch(*store_);
        } else if (!membership_.processes[0]->alive()) {
          // What it sent between the two looks is there all the same.
          if (receive(socket_, packet) == Receipt::kPacket) return meet(packet);
          throw peer_lost(0, "died while the group was being joined");
        }
        return false;
      case Receipt::kClosed:
        if (membership_.region != nullptr) {
          throw peer_lost(0, membership_.processes[0]->alive()
                                 ? "gave up while the group was being joined"
                                 : "died while the group was being joined");
        }
        // The socket of an earlier group under the same key, just closing: look again.
        socket_.reset();
        return false;
      case Receipt::kPacket: return membership_.region == nullptr ? enter(packet) : meet(packet);
    }
    return false;
  }

  std::string waiting_for(int& peer) const override {
    peer = 0;
    if (membership_.region == nullptr) return "rank 0 to open the group";
    std::vector<uint32_t> missing;
    for (uint32_t rank = 0; rank < shape_.world; ++rank) {
      if (load_acquire(membership_.region->control(rank).state) ==
          static_cast<uint32_t>(RankState::kAbsent)) {
        missing.push_back(rank);
      }
    }
    return list_missing(missing, peer);
  }

 private:
  bool connect() {
    const auto now = Clock::now();
    if (now < next_look_) return false;
    next_look_ = now + kStorePoll;
    const std::optional<std::string> entry = store_->try_get(kKey);
    if (!entry) return false;
    std::istringstream fields(*entry);
    std::string version, state, name, token;
    fields >> version >> state;
    if (version == "1" && state == "failed") {
      believe(fields);
      return false;
    }
    fields >> name >> token;
    Hello hello;
    if (version != "1" || state != "open" || !parse_hex(token, hello.token)) {
      throw CommError(ErrorKind::kMismatch,
                      "rank 0 runs a version of hybridcomm that this one cannot join: its entry in "
                      "the store begins with '" +
                          version.substr(0, 8) + "'");
    }
    socket_ = connect_abstract(name);
    // Nobody there: the entry of an earlier group under the same key, so keep looking.
    if (!socket_) return false;
    hello.prefix.kind = Kind::kHello;
    hello.rank = rank_;
    hello.shape = shape_;
    hello.identity = Process::self()->identity();
    hello.proof = proof_;
    const int fds[] = {Process::self()->pidfd()};
    if (!send(socket_, bytes_of(hello), fds)) socket_.reset();
    return static_cast<bool>(socket_);
  }

  // Raises the reason for which rank 0 gave up, unless it is that of an earlier group.
  void believe(std::istringstream& fields) const {
    int kind = 0;
    int64_t at = 0;
    ErrorInfo info;
    fields >> kind >> info.peer >> at;
    std::getline(fields >> std::ws, info.message);
    if (kind <= 0 || kind > static_cast<int>(ErrorKind::kSystem)) return;
    if (at < created_ns_ - kReasonAge.count() || !first_hearing(rank_, at)) return;
    info.kind = static_cast<ErrorKind>(kind);
    if (info.peer < 0) info.peer = 0;
    info.message = "rank 0 gave up: " + info.message;
    throw CommError(std::move(info));
  }

  bool enter(Packet& packet) {
    Welcome welcome;
    if (parse(packet, Kind::kWelcome, welcome) && packet.descriptors.size() == 2) {
      membership_.processes[0] = Process::adopt(welcome.identity, packet.descriptors[1].release());
      membership_.region = Region::map(packet.descriptors[0].get(), shape_);
      RankControl& control = membership_.region->control(rank_);
      store_release(control.state, static_cast<uint32_t>(RankState::kJoined));
      store_release(control.proof, membership_.region->header().nonce ^ proof_);
      Mapped mapped;
      mapped.prefix.kind = Kind::kMapped;
      send(socket_, bytes_of(mapped), {});
      return false;
    }
    Prefix prefix;
    if (packet.bytes.size() >= sizeof(prefix)) {
      std::memcpy(&prefix, packet.bytes.data(), sizeof(prefix));
      if (prefix.magic == kMagic && prefix.kind == Kind::kRefusal) {
        const auto* text = reinterpret_cast<const char*>(packet.bytes.data());
        ErrorInfo info;
        info.kind = ErrorKind::kMismatch;
        info.peer = 0;
        info.message.assign(text + sizeof(prefix), text + packet.bytes.size());
        throw CommError(std::move(info));
      }
    }
    throw malformed();
  }

  bool meet(Packet& packet) {
    Members members;
    if (packet.bytes.size() < sizeof(members)) throw malformed();
    std::memcpy(&members, packet.bytes.data(), sizeof(members));
    if (members.prefix.magic != kMagic || members.prefix.kind != Kind::kMembers ||
        members.first != met_ || members.count == 0 || members.count > shape_.world - met_ ||
        packet.descriptors.size() != members.count ||
        packet.bytes.size() != sizeof(members) + members.count * sizeof(ProcessIdentity)) {
      throw malformed();
    }
    for (uint32_t i = 0; i < members.count; ++i) {
      ProcessIdentity identity;
      std::memcpy(&identity, packet.bytes.data() + sizeof(members) + i * sizeof(identity),
                  sizeof(identity));
      membership_.processes[met_++] = Process::adopt(identity, packet.descriptors[i].release());
    }
    return met_ == shape_.world;
  }

  static CommError malformed() {
    return CommError(ErrorKind::kSystem, "rank 0 sent a malformed packet while joining the group");
  }

  uint32_t rank_;
  Shape shape_;
  std::shared_ptr<KeyValueStore> store_;
  int64_t created_ns_;
  Descriptor socket_;
  Clock::time_point next_look_{};
  Card leader_{0};
  uint64_t proof_ = 0;
  uint32_t met_ = 0;
};

}  // namespace

void Join::give_up(KeyValueStore& store, const ErrorInfo& info) {
  store.set(kKey, "1 failed " + std::to_string(static_cast<int>(info.kind)) + " " +
                      std::to_string(info.peer) + " " + std::to_string(monotonic_ns()) + " " +
                      info.message.substr(0, 500));
}

std::unique_ptr<Join> Join::start(uint32_t rank, const Shape& shape,
                                  std::shared_ptr<KeyValueStore> store, Clock::time_point created) {
  validate(shape);
  if (rank == 0) return std::make_unique<Leader>(shape, std::move(store));
  return std::make_unique<Follower>(rank, shape, std::move(store), created);
}

}  // namespace hybridcomm::shm
