// Program::parse against hostile bytes: what it accepts must mean what the bytes say, and the rest
// must be refused with a sentence that names the field.
#include <algorithm>
#include <cstdio>
#include <random>
#include <span>

#include "check.h"
#include "programs.h"

namespace {

using namespace hybridcomm;
using programs::Bytes;
using programs::Writer;

struct Field {
  const char* name;
  size_t at;
  size_t bytes;
  // One of these words must be in what a refusal says; a wrong count shows in what depends on it.
  std::vector<const char*> words;
  bool free = false;  // some other values of it are good
};

const std::vector<Field> kHeader = {
    {"magic", 0, 4, {"magic"}},
    {"version", 4, 2, {"version"}},
    {"header_bytes", 6, 2, {"header_bytes"}},
    {"collective", 8, 2, {"collective"}, true},
    {"channels", 10, 2, {"channels", "tables need"}},
    {"world", 12, 4, {"world"}, true},
    {"rank", 16, 4, {"rank"}, true},
    {"n_in", 20, 4, {"n_in", "src", "dst", "remote"}, true},
    {"n_out", 24, 4, {"n_out", "src", "dst", "remote"}, true},
    {"n_tmp", 28, 4, {"n_tmp"}, true},
    {"n_steps", 32, 4, {"n_steps", "tables need"}},
    {"n_peers", 36, 4, {"n_peers", "tables need"}},
    {"root", 40, 4, {"root"}, true},
    {"flags", 44, 4, {"flags"}, true},
    {"total_bytes", 48, 4, {"total_bytes"}},
    {"min_slots", 52, 4, {"min_slots"}, true},
    {"reserved", 56, 4, {"reserved"}},
    {"reserved", 60, 4, {"reserved"}},
};
const std::vector<Field> kStep = {
    {"op", 0, 1, {"op", "several", "does not reduce"}, true},
    {"flags", 1, 1, {"flags", "finish"}, true},
    {"n_from", 2, 2, {"n_from", "several", "pool", "twice"}},
    {"n_to", 4, 2, {"n_to", "pool", "twice"}},
    {"reserved", 6, 2, {"reserved"}},
    {"src", 8, 4, {"src"}, true},
    {"dst", 12, 4, {"dst"}, true},
    {"remote", 16, 4, {"remote"}, true},
    {"from_at", 20, 4, {"from_at"}},
    {"to_at", 24, 4, {"to_at"}},
    {"reserved", 28, 4, {"reserved"}},
};

uint32_t get(const Bytes& bytes, size_t at, size_t size) {
  uint32_t value = 0;
  std::memcpy(&value, bytes.data() + at, size);
  return value;
}

void put(Bytes& bytes, size_t at, size_t size, uint32_t value) {
  std::memcpy(bytes.data() + at, &value, size);
}

// Bytes with the operands of each reduction and each wait in ascending order: the one thing that a
// parsed program may change.
Bytes canonical(Bytes bytes) {
  const uint32_t channels = get(bytes, 10, 2);
  const size_t steps = 64 + (4 * (size_t{channels} + 1) + 7) / 8 * 8;
  const uint32_t count = get(bytes, 32, 4);
  const size_t pool = steps + 32 * size_t{count};
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t from = get(bytes, steps + 32 * i + 20, 4);
    std::vector<uint32_t> peers;
    for (uint32_t k = 0; k < get(bytes, steps + 32 * i + 2, 2); ++k) {
      peers.push_back(get(bytes, pool + 4 * (from + k), 4));
    }
    std::sort(peers.begin(), peers.end());
    for (uint32_t k = 0; k < peers.size(); ++k) put(bytes, pool + 4 * (from + k), 4, peers[k]);
  }
  return bytes;
}

// "" if the bytes were accepted and mean what they say; else the refusal.
std::string refusal(const Bytes& bytes, const char* what) {
  try {
    const auto program = Program::parse(bytes);
    CHECK(programs::rewritten(*program) == canonical(bytes), "%s: another meaning", what);
    return {};
  } catch (const CommError& error) {
    CHECK(error.info().kind == ErrorKind::kInvalid, "%s: %s", what, error.what());
    CHECK(error.what()[0] != 0, "%s", what);
    return error.what();
  }
}

const char* const kNames[] = {
    "all_reduce.ring",
    "all_reduce.two_shot",
    "all_reduce.two_shot_mapped",
    "all_reduce.one_shot",
    "all_reduce.double_binary_tree",
    "all_reduce.halving_doubling",
    "broadcast.binomial",
    "broadcast.direct",
    "broadcast.chain",
    "all_gather.ring",
    "all_gather.direct",
    "all_gather.bruck",
    "barrier.dissemination",
    "reduce_scatter.direct",
    "reduce_scatter.ring",
    "reduce_scatter.recursive_halving",
    "all_to_all.direct",
    "all_to_all.pairwise",
    "reduce.direct",
    "reduce.binomial",
    "gather.direct",
    "gather.binomial",
    "scatter.direct",
    "scatter.binomial",
};

void accepts_what_the_algorithms_write() {
  for (const char* name : kNames) {
    for (uint32_t world = 1; world <= 8; ++world) {
      for (uint32_t channels = 1; channels <= 2; ++channels) {
        for (uint32_t rank = 0; rank < world; ++rank) {
          const std::string why = refusal(programs::read(name, world, rank, channels), name);
          CHECK(why.empty(), "%s, world %u, rank %u: %s", name, world, rank, why.c_str());
        }
      }
    }
  }
  const auto program = programs::load("all_reduce.two_shot_mapped", 5, 3, 2);
  CHECK(program->collective() == Collective::kAllReduce);
  CHECK(program->world() == 5 && program->rank() == 3 && program->channels() == 2);
  CHECK(program->inputs() == 10 && program->outputs() == 10 && program->chunks() == 20);
  CHECK(program->one_sided() && program->deterministic() && program->max_operands() == 5);
  CHECK(programs::load("broadcast.direct", 5, 3)->root() == 2);
}

// The comparer of meanings must see each kind of difference.
void finds_planted_differences() {
  const Bytes bytes = programs::read("all_reduce.two_shot", 3, 1);
  const Bytes again = programs::rewritten(*Program::parse(bytes));
  CHECK(again == canonical(bytes));
  for (size_t at = 0; at < bytes.size(); ++at) {
    Bytes other = again;
    other[at] ^= std::byte{1};
    CHECK(other != canonical(bytes));
  }
}

// Values that a field of `size` bytes holding `now` is changed to.
std::vector<uint32_t> values(uint32_t now, size_t size) {
  const uint32_t all = size == 4 ? ~0u : (1u << (8 * size)) - 1;
  std::vector<uint32_t> result;
  for (const uint32_t value : {0u, 1u, 2u, 3u, 7u, 16u, 17u, now - 1, now + 1, now ^ 0x80u, 255u,
                               0x7fffu, 0x8000u, 0x7fffffffu, 0x80000000u, all - 1, all}) {
    if ((value & all) != now) result.push_back(value & all);
  }
  return result;
}

// Changes the field at `at` to many values.
void change(const Bytes& bytes, const Field& field, size_t at) {
  bool accepted = false;
  for (const uint32_t value : values(get(bytes, at, field.bytes), field.bytes)) {
    Bytes mutant = bytes;
    put(mutant, at, field.bytes, value);
    const std::string why = refusal(mutant, field.name);
    accepted |= why.empty();
    const bool named = std::any_of(field.words.begin(), field.words.end(), [&](const char* word) {
      return why.find(word) != std::string::npos;
    });
    CHECK(why.empty() || named, "%s = %u was refused with '%s'", field.name, value, why.c_str());
  }
  CHECK(field.free || !accepted, "a wrong %s at %zu was accepted", field.name, at);
}

void refuses_by_name() {
  const Bytes bytes = programs::read("all_reduce.two_shot_mapped", 4, 1);
  for (const Field& field : kHeader) change(bytes, field, field.at);
  for (uint32_t step = 0; step < get(bytes, 32, 4); ++step) {
    for (const Field& field : kStep) change(bytes, field, 64 + 8 + 32 * size_t{step} + field.at);
  }
}

void expect(const Writer& writer, const char* what) {
  const std::string why = refusal(writer.bytes(), what);
  CHECK(why.find(what) != std::string::npos, "expected '%s', got '%s'", what, why.c_str());
}

Writer writer() {
  Writer result;
  result.world = 4;
  result.inputs = result.outputs = 4;
  return result;
}

void refuses_what_would_break_the_executor() {
  // A step looks once whether a link has a slot, so naming a peer twice would overrun the ring.
  expect(writer().step(StepOp::kSend, {}, {2, 1, 2}, 0, kNoChunk), "one rank twice");
  expect(writer().signal({1, 1}), "one rank twice");
  expect(writer().wait({3, 1, 3}), "one rank twice");
  expect(writer().step(StepOp::kRecvReduce, {1, 1}, {}, 0, 4), "one rank twice");
  expect(writer().step(StepOp::kRecvCopySend, {1}, {2, 2}, kNoChunk, 4), "one rank twice");
  expect(writer().send(0, 0), "own rank");
  expect(writer().send(4, 0), "below world");
  expect(writer().send(1, 8), "src");
  expect(writer().recv(1, 8), "dst");
  expect(writer().step(StepOp::kRecv, {1, 2}, {}, kNoChunk, 4), "several");
  expect(writer().step(StepOp::kReadReduce, {1}, {}, kNoChunk, 4, 8), "remote");
  expect(writer().step(StepOp::kCopy, {}, {}, 0, 4, kNoChunk, true), "finish");

  // Chunks that only the root has: there is no memory behind the others' entries.
  Writer rooted = writer();
  rooted.collective = Collective::kGather;
  rooted.inputs = 1;
  rooted.temporaries = 1;
  rooted.root = 2;
  expect(Writer(rooted).recv(1, 1), "root's alone");
  expect(Writer(rooted).recv(1, 4), "root's alone");
  expect(Writer(rooted).step(StepOp::kCopy, {}, {}, 4, 5), "root's alone");
  expect(Writer(rooted).step(StepOp::kWrite, {}, {1}, 0, kNoChunk, 4), "root's alone");
  CHECK(refusal(Writer(rooted).recv(1, 5).bytes(), "a temporary").empty());
  CHECK(refusal(Writer(rooted).step(StepOp::kWrite, {}, {2}, 0, kNoChunk, 4).bytes(), "w").empty());
  rooted.collective = Collective::kScatter;
  rooted.inputs = 4;
  rooted.outputs = 1;
  expect(Writer(rooted).send(1, 3), "root's alone");
  CHECK(refusal(Writer(rooted).recv(1, 4).bytes(), "an output").empty());
  rooted.rank = 2;
  CHECK(refusal(Writer(rooted).send(1, 3).bytes(), "the root").empty());
  rooted.root = kNoChunk;
  expect(rooted, "root");
  Writer unrooted = writer();
  unrooted.root = 0;
  expect(unrooted, "root");

  // Peer lists that overlap: sorting one would change the other.
  Writer overlap = writer();
  overlap.step(StepOp::kRecvReduce, {3, 1}, {}, 0, 4);
  overlap.step(StepOp::kSend, {}, {1}, 0, kNoChunk);
  overlap.steps[1].from_at = overlap.steps[1].to_at = 1;
  overlap.peers.pop_back();
  expect(overlap, "from_at");

  Writer unused = writer();
  unused.send(1, 0).peers.push_back(2);
  expect(unused, "n_peers");

  Bytes padded = writer().send(1, 0).next_channel().bytes();
  padded[64 + 12] = std::byte{1};
  CHECK(refusal(padded, "padding").find("padding") != std::string::npos);

  // The order of what is sent is the algorithm's; operands are sorted.
  const auto kept = writer()
                        .step(StepOp::kSend, {}, {3, 1, 2}, 0, kNoChunk)
                        .step(StepOp::kRecvReduce, {3, 1}, {}, 0, 4)
                        .parse();
  const uint32_t* peers = kept->view().peers;
  CHECK(peers[0] == 3 && peers[1] == 1 && peers[2] == 2 && peers[3] == 1 && peers[4] == 3);
}

void survives_any_bytes(uint64_t rounds) {
  std::mt19937_64 random(20);
  std::vector<Bytes> seeds;
  for (const char* name : kNames) {
    for (const uint32_t world : {2u, 4u})
      seeds.push_back(programs::read(name, world, 1, world / 2));
  }
  uint64_t accepted = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    Bytes bytes = seeds[random() % seeds.size()];
    for (uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0: bytes[at] ^= static_cast<std::byte>(1u << random() % 8); break;
        case 1: bytes[at] = static_cast<std::byte>(random()); break;
        case 2:
          put(bytes, at / 4 * 4, std::min<size_t>(4, bytes.size() - at / 4 * 4),
              static_cast<uint32_t>(random() % 20));
          break;
        default:
          // A length that agrees with itself reaches what lies behind the first check.
          bytes.resize(random() % 2 == 0 ? at : bytes.size() + 4 * (random() % 9));
          if (bytes.size() >= 64) put(bytes, 48, 4, static_cast<uint32_t>(bytes.size()));
      }
      if (bytes.empty()) break;
    }
    accepted += refusal(bytes, "random").empty();
  }
  CHECK(accepted > rounds / 100, "only %zu of the mutants were accepted", size_t{accepted});
  CHECK(accepted < rounds / 2);
}

}  // namespace

int main() {
  finds_planted_differences();
  accepts_what_the_algorithms_write();
  refuses_by_name();
  refuses_what_would_break_the_executor();
  survives_any_bytes(200'000);
  return check_status();
}
