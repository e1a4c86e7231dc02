// Joining a group among strangers and liars: they are refused with a sentence that says why, and
// the real ranks still meet.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>

#include "check.h"
#include "parties.h"

namespace {

using namespace parties;

void finds_planted_leftovers() {
  const Belongings before;
  int fd = -1;
  const auto region = Region::create_memfd(kShape, fd);
  const Belongings after;
  CHECK(after.descriptors == before.descriptors + 1 && after.mappings == before.mappings + 1);
  close(fd);
}

// ---- strangers at the leader's door -------------------------------------------------------------

// Starts a leader, lets `stranger` do what it will, and then the real rank 1 must still get in.
void job_survives(const char* name, const std::function<void(MapStore&, Party&)>& stranger) {
  leaves_nothing(name, [&] {
    const auto store = std::make_shared<MapStore>();
    Party leader(0, store);
    stranger(*store, leader);
    CHECK(!leader.over(), "%s", leader.message());
    Party follower(1, store);
    CHECK(drive({&leader, &follower}) && leader.done && follower.done, "leader %s, rank 1 %s",
          leader.message(), follower.message());
    if (!leader.done || !follower.done) return;
    const Membership ours = leader.join->take();
    const Membership theirs = follower.join->take();
    ours.region->slots(0, 0, 1)[3] = std::byte{42};
    CHECK(theirs.region->slots(0, 0, 1)[3] == std::byte{42}, "the memory is not one");
    CHECK(ours.processes.size() == 2 && ours.processes[1]->alive() && theirs.processes[0]->alive());
  });
}

// Sends more descriptors than our own send() would: up to the kernel's limit of 253.
void send_crowd(const Descriptor& socket, std::span<const std::byte> bytes, size_t count) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 253)] = {};
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (count > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * count);
    for (size_t i = 0; i < count; ++i) {
      const int fd = Process::self()->pidfd();
      std::memcpy(CMSG_DATA(header) + i * sizeof(int), &fd, sizeof(int));
    }
  }
  CHECK(sendmsg(socket.get(), &message, 0) == static_cast<ssize_t>(bytes.size()));
}

void strangers() {
  job_survives("nobody", [](MapStore&, Party&) {});
  job_survives("one that says nothing", [](MapStore& store, Party& leader) {
    // Dies with this scope, after the leader has accepted it, and again before.
    Descriptor silent = call(store);
    idle({&leader});
    silent = call(store);
  });
  job_survives("garbage", [](MapStore& store, Party& leader) {
    std::vector<std::byte> garbage;
    for (const size_t size : {1, 16, 24, 88, 89, 4096, 9000}) {
      garbage.resize(size, std::byte{0x5c});
      const Descriptor socket = call(store);
      say(socket, garbage, {});
      idle({&leader}, milliseconds(3));
      CHECK(answer(socket) == "closed", "after %zu bytes", size);
    }
  });
  job_survives("a wrong token", [](MapStore& store, Party& leader) {
    RawHello wrong = hello(store);
    wrong.token[1] ^= 1;
    const Descriptor socket = call(store);
    say(socket, bytes_of(wrong), {Process::self()->pidfd()});
    idle({&leader});
    CHECK(answer(socket) == "closed");
  });
  job_survives("too few and too many descriptors", [](MapStore& store, Party& leader) {
    for (const size_t count : {0, 2, 200, 253}) {
      const Descriptor socket = call(store);
      send_crowd(socket, bytes_of(hello(store)), count);
      idle({&leader}, milliseconds(3));
      CHECK(answer(socket) == "closed", "with %zu descriptors", count);
    }
  });
  job_survives("a descriptor that is no pidfd", [](MapStore& store, Party& leader) {
    const Descriptor null(open("/dev/null", O_RDONLY | O_CLOEXEC));
    const Descriptor socket = call(store);
    say(socket, bytes_of(hello(store)), {null.get()});
    idle({&leader});
    const std::string text = answer(socket);
    CHECK(text.find("not a pidfd") != std::string::npos, "%s", text.c_str());
  });
  job_survives("ranks that do not exist", [](MapStore& store, Party& leader) {
    for (const uint32_t rank : {0u, 2u, 0xffffffffu}) {
      RawHello wrong = hello(store);
      wrong.rank = rank;
      const Descriptor socket = call(store);
      say(socket, bytes_of(wrong), {Process::self()->pidfd()});
      idle({&leader}, milliseconds(3));
      const std::string text = answer(socket);
      CHECK(text.find("not within the world size of 2") != std::string::npos, "%s", text.c_str());
    }
  });
  leaves_nothing("a second rank 1", [] {
    const auto store = std::make_shared<MapStore>();
    Party leader(0, store);
    Party first(1, store);
    first.step();
    leader.step();
    Party second(1, store);
    CHECK(drive({&leader, &first, &second}));
    CHECK(leader.done && first.done);
    CHECK(second.raised(ErrorKind::kMismatch, "rank 1 is taken", 0), "%s", second.message());
  });
}

// Those who know the token but cannot be part of the group end it, and everybody learns why.
void misfits() {
  leaves_nothing("another shape", [] {
    for (const Shape& shape :
         {Shape{2, 2, 2, 64}, Shape{2, 1, 4, 64}, Shape{2, 1, 2, 128}, Shape{3, 1, 2, 64}}) {
      const auto store = std::make_shared<MapStore>();
      Party leader(0, store);
      Party other(1, store, shape);
      CHECK(drive({&leader, &other}));
      for (const Party* party : {&leader, &other}) {
        const bool both = party->raised(ErrorKind::kMismatch,
                                        "rank 0 has world size 2, 1 channels, 2 slots of 64") &&
                          party->raised(ErrorKind::kMismatch,
                                        "rank 1 has world size " + std::to_string(shape.world) +
                                            ", " + std::to_string(shape.channels) + " channels, " +
                                            std::to_string(shape.slots) + " slots of " +
                                            std::to_string(shape.slot_bytes));
        CHECK(both, "%s", party->message());
      }
      CHECK(leader.error && leader.error->peer == 1 && other.error && other.error->peer == 0);
    }
  });
  leaves_nothing("another protocol", [] {
    const auto store = std::make_shared<MapStore>();
    Party leader(0, store);
    RawHello other = hello(*store);
    other.prefix.version = 2;
    const Descriptor socket = call(*store);
    say(socket, bytes_of(other), {Process::self()->pidfd()});
    CHECK(drive({&leader}));
    CHECK(leader.raised(ErrorKind::kMismatch, "(protocol 2)", 1), "%s", leader.message());
    CHECK(answer(socket).find("(protocol 2)") != std::string::npos);
  });
  leaves_nothing("no proof", [] {
    const auto store = std::make_shared<MapStore>();
    Party leader(0, store);
    const Descriptor socket = call(*store);
    say(socket, bytes_of(hello(*store)), {Process::self()->pidfd()});
    leader.step();
    const Prefix mapped{kMagic, 4, 1};
    say(socket, bytes_of(mapped), {});
    CHECK(drive({&leader}));
    CHECK(leader.raised(ErrorKind::kSystem, "rank 1 could not prove"), "%s", leader.message());
  });
  leaves_nothing(
      "a crowd that says nothing neither keeps the ranks out nor uses descriptors up", [] {
        const auto store = std::make_shared<MapStore>();
        Party leader(0, store);
        std::vector<Descriptor> crowd;
        for (int i = 0; i < 300; ++i) {
          crowd.push_back(call(*store));
          leader.step();
        }
        const Belongings with_crowd;
        CHECK(with_crowd.descriptors < 300 + 100, "%zu descriptors", with_crowd.descriptors);
        Party follower(1, store);
        CHECK(drive({&leader, &follower}));
        CHECK(leader.done && follower.done, "%s; %s", leader.message(), follower.message());
      });
  leaves_nothing("rank 0's reason reaches those who come later", [] {
    const auto store = std::make_shared<MapStore>();
    Party late(1, store);
    Party leader(0, store);
    Join::give_up(*store, {ErrorKind::kTimeout, "no rank 1", "", "", 0, 0, 0, 1});
    CHECK(drive({&late}));
    CHECK(late.raised(ErrorKind::kTimeout, "rank 0 gave up: no rank 1", 1), "%s", late.message());
  });
}

// ---- leaders that lie ---------------------------------------------------------------------------

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Descriptor memfd(uint64_t bytes, int seals) {
  Descriptor fd(memfd_create("hybridcomm-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  CHECK(ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  CHECK(seals == 0 || fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
  return fd;
}

void lying_leaders() {
  const int self = Process::self()->pidfd();
  const Descriptor null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const auto refused = [](const char* name, const char* text,
                          const std::function<void(FakeLeader&)>& lie) {
    leaves_nothing(name, [&] {
      const auto store = std::make_shared<MapStore>();
      FakeLeader leader(*store);
      Party follower(1, store);
      leader.meet(follower);
      lie(leader);
      CHECK(drive({&follower}));
      CHECK(follower.raised(ErrorKind::kSystem, text), "%s", follower.message());
    });
  };
  const auto hands_over = [&](const char* name, const char* text,
                              const std::function<Descriptor()>& make) {
    refused(name, text, [&](FakeLeader& leader) {
      const Descriptor fd = make();
      say(leader.socket, bytes_of(RawWelcome()), {fd.get(), self});
    });
  };
  const uint64_t size = region_bytes(kShape);
  hands_over("an unsealed memfd", "not a sealed memfd", [&] { return memfd(size, 0); });
  hands_over("a memfd that may shrink", "not a sealed memfd",
             [&] { return memfd(size, F_SEAL_GROW | F_SEAL_SEAL); });
  hands_over("no memfd", "not a sealed memfd",
             [] { return Descriptor(open("/dev/zero", O_RDWR | O_CLOEXEC)); });
  hands_over("too small a memfd", "bytes, not", [&] { return memfd(size - 4096, kSeals); });
  hands_over("too large a memfd", "bytes, not", [&] { return memfd(size + 4096, kSeals); });
  hands_over("an empty header", "magic", [&] { return memfd(size, kSeals); });
  hands_over("another layout", "layout version 2",
             [] { return spoiled([](RegionHeader& h) { h.version = 2; }); });
  hands_over("another header size", "layout version",
             [] { return spoiled([](RegionHeader& h) { h.header_bytes += 8; }); });
  hands_over("another shape inside", "another shape",
             [] { return spoiled([](RegionHeader& h) { h.shape.slots = 3; }); });
  hands_over("another size inside", "another shape",
             [] { return spoiled([](RegionHeader& h) { h.region_bytes += 1; }); });

  refused("no descriptors", "malformed",
          [](FakeLeader& leader) { say(leader.socket, bytes_of(RawWelcome()), {}); });
  refused("a pidfd that is none", "not a pidfd", [&](FakeLeader& leader) {
    const Descriptor fd = spoiled([](RegionHeader&) {});
    say(leader.socket, bytes_of(RawWelcome()), {fd.get(), null.get()});
  });
  refused("garbage", "malformed",
          [](FakeLeader& leader) { say(leader.socket, std::array<std::byte, 40>(), {}); });

  // The second packet: who the others are.
  const auto introduces = [&](const char* name, const char* text, const RawMembers& members,
                              size_t bytes, std::initializer_list<int> fds) {
    refused(name, text, [&](FakeLeader& leader) {
      const Descriptor fd = spoiled([](RegionHeader&) {});
      say(leader.socket, bytes_of(RawWelcome()), {fd.get(), self});
      say(leader.socket, bytes_of(members).first(bytes), fds);
    });
  };
  RawMembers members;
  const size_t whole = sizeof(members);
  introduces("members without descriptors", "malformed", members, whole, {});
  introduces("members with too many descriptors", "malformed", members, whole, {self, self, self});
  introduces("members cut short", "malformed", members, whole - 8, {self, self});
  introduces("members that are no processes", "not a pidfd", members, whole, {self, null.get()});
  for (const uint32_t count : {0u, 3u, 0xffffffffu}) {
    members.count = count;
    introduces("a wrong number of members", "malformed", members, whole, {self, self});
  }
  members.count = 2;
  members.first = 1;
  introduces("members from the middle", "malformed", members, whole, {self, self});
}

}  // namespace

int main() {
  finds_planted_leftovers();
  strangers();
  misfits();
  lying_leaders();
  return check_status();
}
