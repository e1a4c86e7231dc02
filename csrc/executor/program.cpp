// Validation of flat programs.
#include "executor/program.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "transports/link.h"

namespace hybridcomm {
namespace {

constexpr uint32_t kMaxPeers = 1u << 24;
constexpr uint32_t kMaxSteps = 1u << 24;
constexpr uint32_t kMaxChunks = 1u << 24;
constexpr uint32_t kMaxProgramWorld = 1u << 20;
constexpr uint32_t kMaxProgramChannels = 64;

struct FlatHeader {
  char magic[4];
  uint16_t version;
  uint16_t header_bytes;
  uint16_t collective;
  uint16_t channels;
  uint32_t world;
  uint32_t rank;
  uint32_t n_in;
  uint32_t n_out;
  uint32_t n_tmp;
  uint32_t n_steps;
  uint32_t n_peers;
  uint32_t root;
  uint32_t flags;
  uint32_t total_bytes;
  uint32_t min_slots;
  uint32_t reserved[2];
};
static_assert(sizeof(FlatHeader) == 64);

void require(bool good, const std::string& what) {
  if (!good) throw CommError(ErrorKind::kInvalid, "flat program: " + what);
}

std::string number(uint64_t value) { return std::to_string(value); }

// Which fields a step of each kind has; anything else is a malformed step.
struct StepShape {
  bool from, to, src, dst, remote;
  bool several_from;
};

StepShape shape_of(StepOp op) {
  switch (op) {
    case StepOp::kSend: return {false, true, true, false, false, false};
    case StepOp::kRecv: return {true, false, false, true, false, false};
    case StepOp::kCopy: return {false, false, true, true, false, false};
    case StepOp::kRecvReduce: return {true, false, true, true, false, true};
    case StepOp::kRecvCopySend: return {true, true, false, true, false, false};
    case StepOp::kRecvReduceSend: return {true, true, true, false, false, true};
    case StepOp::kRecvReduceCopySend: return {true, true, true, true, false, true};
    case StepOp::kReadReduce: return {true, false, false, true, true, true};
    case StepOp::kWrite: return {false, true, true, false, true, false};
    case StepOp::kSignal: return {false, true, false, false, false, false};
    case StepOp::kWait: return {true, false, false, false, false, true};
  }
  return {};
}

bool reduces(StepOp op) {
  return op == StepOp::kRecvReduce || op == StepOp::kRecvReduceSend ||
         op == StepOp::kRecvReduceCopySend || op == StepOp::kReadReduce;
}

bool has_root(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kReduce ||
         collective == Collective::kGather || collective == Collective::kScatter;
}

// Whether `rank` has memory for a chunk. Some are the root's alone.
bool has_chunk(const FlatHeader& header, uint32_t rank, uint64_t chunk) {
  if (rank == header.root) return true;
  switch (static_cast<Collective>(header.collective)) {
    case Collective::kReduce:
    case Collective::kGather:
      return chunk < header.n_in || chunk >= uint64_t{header.n_in} + header.n_out;
    case Collective::kScatter: return chunk >= header.n_in;
    default: return true;
  }
}

}  // namespace

const char* collective_name(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce: return "all_reduce";
    case Collective::kBroadcast: return "broadcast";
    case Collective::kAllGather: return "all_gather";
    case Collective::kBarrier: return "barrier";
    case Collective::kReduceScatter: return "reduce_scatter";
    case Collective::kAllToAll: return "all_to_all";
    case Collective::kReduce: return "reduce";
    case Collective::kGather: return "gather";
    case Collective::kScatter: return "scatter";
    case Collective::kSendRecv: return "send_recv";
  }
  return "unknown collective";
}

std::shared_ptr<const Program> Program::parse(std::span<const std::byte> bytes) {
  FlatHeader header;
  require(bytes.size() >= sizeof(header), "shorter than its header of 64 bytes");
  std::memcpy(&header, bytes.data(), sizeof(header));
  require(std::memcmp(header.magic, "HCPR", 4) == 0, "magic is not HCPR");
  require(header.version == 1, "version " + number(header.version) + " is not 1");
  require(header.header_bytes == sizeof(header), "header_bytes is not 64");
  require(header.total_bytes == bytes.size(),
          "total_bytes says " + number(header.total_bytes) + ", there are " + number(bytes.size()));
  require(header.collective >= 1 && header.collective <= 10,
          "collective " + number(header.collective) + " is unknown");
  require(header.channels >= 1 && header.channels <= kMaxProgramChannels,
          "channels " + number(header.channels) + " is not within 1 to 64");
  require(header.world >= 1 && header.world <= kMaxProgramWorld,
          "world " + number(header.world) + " is out of range");
  require(header.rank < header.world, "rank is not below world");
  require(has_root(static_cast<Collective>(header.collective)) ? header.root < header.world
                                                               : header.root == kNoChunk,
          "root " + number(header.root) + " does not fit the collective and world");
  require(header.n_steps <= kMaxSteps, "n_steps is out of range");
  require(header.n_peers <= kMaxPeers, "n_peers is out of range");
  require(uint64_t{header.n_in} + header.n_out + header.n_tmp <= kMaxChunks,
          "n_in, n_out and n_tmp are out of range");
  require(header.flags <= 1, "flags has unknown bits");
  require(header.min_slots >= 1 && header.min_slots <= kMaxSlots,
          "min_slots " + number(header.min_slots) + " is not within 1 to " + number(kMaxSlots));
  require(header.reserved[0] == 0 && header.reserved[1] == 0, "reserved words are not zero");

  const uint64_t begin_bytes = (4ull * (header.channels + 1) + 7) / 8 * 8;
  const uint64_t expected = sizeof(header) + begin_bytes + sizeof(Step) * uint64_t{header.n_steps} +
                            4 * uint64_t{header.n_peers};
  require(expected == bytes.size(),
          "its tables need " + number(expected) + " bytes, not " + number(bytes.size()));

  std::shared_ptr<Program> program(new Program);
  program->collective_ = static_cast<Collective>(header.collective);
  program->rank_ = header.rank;
  program->world_ = header.world;
  program->channels_ = header.channels;
  program->inputs_ = header.n_in;
  program->outputs_ = header.n_out;
  program->temporaries_ = header.n_tmp;
  program->root_ = header.root;
  program->min_slots_ = header.min_slots;
  program->deterministic_ = (header.flags & 1) != 0;

  auto read = [&bytes, at = sizeof(header)](auto& to, uint64_t count, uint64_t stride) mutable {
    to.resize(count);
    if (count != 0) std::memcpy(to.data(), bytes.data() + at, count * sizeof(to[0]));
    at += stride;
  };
  read(program->channel_begin_, header.channels + 1, begin_bytes);
  read(program->steps_, header.n_steps, sizeof(Step) * uint64_t{header.n_steps});
  read(program->peers_, header.n_peers, 4 * uint64_t{header.n_peers});

  const std::vector<uint32_t>& begin = program->channel_begin_;
  require(begin.front() == 0 && begin.back() == header.n_steps,
          "channel_begin does not run from 0 to n_steps");
  require(std::is_sorted(begin.begin(), begin.end()), "channel_begin is not ascending");
  for (uint64_t at = sizeof(header) + 4 * begin.size(); at < sizeof(header) + begin_bytes; ++at) {
    require(bytes[at] == std::byte{0}, "the padding after channel_begin is not zero");
  }
  for (const uint32_t peer : program->peers_) {
    require(peer < header.world, "peer " + number(peer) + " is not below world");
    require(peer != header.rank, "a step's peer is its own rank " + number(peer));
  }

  const uint64_t chunks = program->chunks();
  uint64_t in_use = 0;  // of the peer pool
  for (uint32_t i = 0; i < header.n_steps; ++i) {
    const Step& step = program->steps_[i];
    const std::string where = "step " + number(i) + ": ";
    const auto raw = static_cast<uint8_t>(step.op);
    require(raw >= 1 && raw <= 11, where + "op " + number(raw) + " is unknown");
    const StepShape shape = shape_of(step.op);
    require(step.reserved0 == 0 && step.reserved1 == 0, where + "reserved fields are not zero");
    require((step.flags & ~kFinish) == 0, where + "flags has unknown bits");
    require(step.flags == 0 || reduces(step.op), where + "finish on a step that does not reduce");
    require(shape.from ? step.n_from >= 1 : step.n_from == 0, where + "n_from does not fit its op");
    require(shape.several_from || step.n_from <= 1, where + "receives from several ranks");
    require(shape.to ? step.n_to >= 1 : step.n_to == 0, where + "n_to does not fit its op");
    // The lists follow each other: none overlaps another, which sorting would change.
    require(step.from_at == in_use && step.to_at == in_use + step.n_from,
            where + "from_at or to_at is not where the pool of peers was used up to");
    in_use += uint64_t{step.n_from} + step.n_to;
    require(in_use <= header.n_peers, where + "its peers lie outside the pool");
    const bool may_lack_src = !shape.src || step.op == StepOp::kReadReduce;
    const bool may_have_src = shape.src || step.op == StepOp::kReadReduce;
    require((step.src == kNoChunk && may_lack_src) || (step.src < chunks && may_have_src),
            where + "src is no chunk, or does not fit its op");
    require(shape.dst ? step.dst < chunks : step.dst == kNoChunk,
            where + "dst is no chunk, or does not fit its op");
    require(shape.remote ? step.remote < chunks : step.remote == kNoChunk,
            where + "remote is no chunk, or does not fit its op");
    for (const uint32_t chunk : {step.src, step.dst}) {
      require(chunk == kNoChunk || has_chunk(header, header.rank, chunk),
              where + "src or dst is a chunk of the root's alone");
    }
    for (uint64_t k = 0; shape.remote && k < uint64_t{step.n_from} + step.n_to; ++k) {
      require(has_chunk(header, program->peers_[step.from_at + k], step.remote),
              where + "remote is a chunk of the root's alone");
    }
    program->one_sided_ |= shape.remote;
    // Operands are taken in ascending rank order, whatever order the algorithm lists them in. For
    // what is sent the order tells whom to serve first.
    const auto from = program->peers_.begin() + step.from_at;
    std::sort(from, from + step.n_from);
    std::vector<uint32_t> to(from + step.n_from, from + step.n_from + step.n_to);
    std::sort(to.begin(), to.end());
    // A step looks once whether a link is ready, so it may not use one twice.
    require(std::adjacent_find(from, from + step.n_from) == from + step.n_from &&
                std::adjacent_find(to.begin(), to.end()) == to.end(),
            where + "names one rank twice");
    if (reduces(step.op)) {
      program->max_operands_ = std::max(program->max_operands_, uint32_t{step.n_from} + 1);
    }
  }
  require(in_use == header.n_peers,
          "n_peers is " + number(header.n_peers) + ", the steps have " + number(in_use));
  return program;
}

}  // namespace hybridcomm
