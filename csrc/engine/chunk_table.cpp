// How a call's buffers are cut into the chunks that its program names.
#include <algorithm>

#include "engine/collective.h"
#include "transports/shm/layout.h"

namespace hybridcomm {
namespace {

constexpr char kPassesOn[] = "ranks pass on each other's parts, which must all be equally long";

void require(bool good, const OperationArguments& arguments, const std::string& what) {
  if (good) return;
  throw CommError(ErrorKind::kInvalid,
                  std::string(collective_name(arguments.program->collective())) + " by " +
                      arguments.algorithm + ": " + what);
}

// One part of the table, inputs or outputs, and the buffers that it is cut from. Of several
// buffers, one for each rank, chunk c * world + r is part c of buffer r.
struct Space {
  uint64_t chunks;
  uint32_t buffers;
  bool here = true;  // whether this rank has any

  uint32_t parts() const { return static_cast<uint32_t>(chunks / buffers); }
};

struct Spaces {
  Space in, out;
};

Spaces spaces_of(const Program& program) {
  const uint64_t channels = program.channels();
  const uint32_t world = program.world();
  const Space none{0, 0, false};
  const Space whole{channels * world, 1};  // one buffer, a piece of it for each rank
  const Space one{channels, 1};
  const Space each{channels * world, world};  // a buffer for each rank
  const auto root_only = [&](Space space) {
    space.here = program.rank() == program.root();
    return space;
  };
  switch (program.collective()) {
    case Collective::kAllReduce: return {whole, whole};
    case Collective::kBroadcast: return {one, one};
    case Collective::kAllGather: return {one, each};
    case Collective::kBarrier: return {none, none};
    case Collective::kReduceScatter: return {each, one};
    case Collective::kAllToAll: return {each, each};
    case Collective::kReduce: return {one, root_only(one)};
    case Collective::kGather: return {one, root_only(each)};
    case Collective::kScatter: return {root_only(each), one};
    case Collective::kSendRecv: break;
  }
  return {none, none};
}

// Cuts buffer number `at` of the space whose chunks begin at table[first].
void cut(const Buffer& buffer, uint32_t at, const Space& space, uint64_t element_bytes,
         std::vector<Chunk>& table, uint64_t first) {
  const uint64_t count = buffer.bytes / element_bytes;
  // Chunks begin on cache lines, relative to the buffer: no line is shared between two owners.
  const uint64_t even = (count + space.parts() - 1) / space.parts() * element_bytes;
  const uint64_t size = shm::round_up(even, kCacheLine);
  for (uint32_t i = 0; i < space.parts(); ++i) {
    const uint64_t begin = std::min(uint64_t{i} * size, buffer.bytes);
    const uint64_t end = std::min(begin + size, buffer.bytes);
    table[first + at + uint64_t{i} * space.buffers] = {static_cast<std::byte*>(buffer.data) + begin,
                                                       end - begin};
  }
}

void check_buffers(const OperationArguments& arguments, const Spaces& spaces) {
  const uint64_t element = dtype_size(arguments.dtype);
  const uint64_t bytes = arguments.count * element;
  // Parts of ranks may differ in length; one tensor of all may not.
  const Collective collective = arguments.program->collective();
  const bool parts = collective != Collective::kAllReduce && collective != Collective::kBroadcast &&
                     collective != Collective::kReduce;
  bool alike = arguments.splits == 0;
  const auto check = [&](const std::vector<Buffer>& buffers, const Space& space,
                         const char* which) {
    const uint32_t wanted = space.here ? space.buffers : 0;
    require(
        buffers.size() == wanted, arguments,
        std::to_string(buffers.size()) + " " + which + " buffers, needs " + std::to_string(wanted));
    for (const Buffer& buffer : buffers) {
      const std::string what =
          std::string(which) + " buffer of " + std::to_string(buffer.bytes) + " bytes, ";
      require(parts || buffer.bytes == bytes, arguments, what + "needs " + std::to_string(bytes));
      require(buffer.bytes % element == 0, arguments,
              what + "no whole number of elements of " + std::to_string(element));
      alike = alike && buffer.bytes == buffers[0].bytes;
    }
  };
  check(arguments.inputs, spaces.in, "input");
  check(arguments.outputs, spaces.out, "output");
  if (arguments.inputs.empty() || arguments.outputs.empty()) return;

  // What this rank has of one piece at both ends is equally long.
  const auto own = [&](const std::vector<Buffer>& buffers) {
    return buffers[buffers.size() > 1 ? arguments.program->rank() : 0].bytes;
  };
  const uint64_t given = own(arguments.inputs);
  require(given == own(arguments.outputs), arguments,
          "input buffer of " + std::to_string(given) + " bytes, output buffer of " +
              std::to_string(own(arguments.outputs)));
  require(!alike || given == bytes, arguments,
          "buffers of " + std::to_string(given) + " bytes, needs " + std::to_string(bytes));
  // The others of a gather or scatter know no length but their own.
  require(alike || arguments.program->root() == kNoChunk || arguments.program->temporaries() == 0,
          arguments, kPassesOn);
}

// Gives memory to the temporaries that a step names. tmp[i] is as long as piece i, modulo their
// number, and the pieces are those of the larger space.
void allocate_temporaries(const Program& program, std::vector<Chunk>& table,
                          std::unique_ptr<std::byte[]>& memory) {
  const uint64_t begin = uint64_t{program.inputs()} + program.outputs();
  const bool by_input = program.inputs() > program.outputs();
  const Chunk* pieces = table.data() + (by_input ? 0 : program.inputs());
  const uint64_t n_pieces = std::max(program.inputs(), program.outputs());
  std::vector<bool> named(program.temporaries());
  const ProgramView view = program.view();
  for (uint32_t i = 0; i < view.channel_begin[view.channels]; ++i) {
    for (const uint32_t chunk : {view.steps[i].src, view.steps[i].dst}) {
      if (chunk != kNoChunk && chunk >= begin) named[chunk - begin] = true;
    }
  }
  uint64_t total = 0;
  for (uint32_t i = 0; i < program.temporaries(); ++i) {
    if (!named[i]) continue;
    table[begin + i].bytes = pieces[i % n_pieces].bytes;
    total += shm::round_up(table[begin + i].bytes, kCacheLine);
  }
  memory = std::make_unique_for_overwrite<std::byte[]>(total);
  uint64_t at = 0;
  for (uint32_t i = 0; i < program.temporaries(); ++i) {
    if (!named[i]) continue;
    table[begin + i].data = memory.get() + at;
    at += shm::round_up(table[begin + i].bytes, kCacheLine);
  }
}

}  // namespace

std::vector<Chunk> chunk_table(const OperationArguments& arguments,
                               std::unique_ptr<std::byte[]>& temporaries) {
  const Program& program = *arguments.program;
  const uint64_t element = dtype_size(arguments.dtype);
  const Spaces spaces = spaces_of(program);
  require(program.collective() != Collective::kSendRecv, arguments, "it is no collective");
  require(program.inputs() == spaces.in.chunks && program.outputs() == spaces.out.chunks, arguments,
          "the program has " + std::to_string(program.inputs()) + " input and " +
              std::to_string(program.outputs()) + " output chunks, needs " +
              std::to_string(spaces.in.chunks) + " and " + std::to_string(spaces.out.chunks));
  check_buffers(arguments, spaces);

  std::vector<Chunk> table(program.chunks(), Chunk{nullptr, 0});
  for (uint32_t i = 0; i < arguments.inputs.size(); ++i) {
    cut(arguments.inputs[i], i, spaces.in, element, table, 0);
  }
  for (uint32_t i = 0; i < arguments.outputs.size(); ++i) {
    cut(arguments.outputs[i], i, spaces.out, element, table, program.inputs());
  }
  // A rank without the root's chunks knows how long they are only where all are as long as its own.
  const bool inputs_lack = !spaces.in.here;
  if (inputs_lack || !spaces.out.here) {
    const Space& lacking = inputs_lack ? spaces.in : spaces.out;
    const uint64_t first = inputs_lack ? 0 : program.inputs();
    const uint64_t own = inputs_lack ? program.inputs() : 0;
    const std::vector<Buffer>& buffers = inputs_lack ? arguments.outputs : arguments.inputs;
    const bool alike = !buffers.empty() && buffers[0].bytes == arguments.count * element;
    for (uint64_t i = 0; alike && i < lacking.chunks; ++i) {
      table[first + i].bytes = table[own + i / lacking.buffers].bytes;
    }
    require(alike || program.temporaries() == 0, arguments, kPassesOn);
  }
  require(program.temporaries() == 0 ||
              (program.outputs() != 0 && program.collective() != Collective::kAllToAll),
          arguments, "it has no temporaries");
  if (program.temporaries() != 0) allocate_temporaries(program, table, temporaries);
  // The executor takes a step's length from one of its chunks.
  const ProgramView view = program.view();
  for (uint32_t i = 0; i < view.channel_begin[view.channels]; ++i) {
    const Step& step = view.steps[i];
    require(step.src == kNoChunk || step.dst == kNoChunk ||
                table[step.src].bytes == table[step.dst].bytes,
            arguments, "step " + std::to_string(i) + " joins chunks of different lengths");
  }
  return table;
}

}  // namespace hybridcomm
