// How a call's buffers are cut into the chunks that its program names.
#include <algorithm>

#include "engine/collective.h"
#include "transports/shm/layout.h"

namespace hybridcomm {
namespace {

void require(bool good, const OperationArguments& arguments, const std::string& what) {
  if (good) return;
  throw CommError(ErrorKind::kInvalid,
                  std::string(collective_name(arguments.program->collective())) + " by " +
                      arguments.algorithm + ": " + what);
}

// Cuts `buffer` into `parts`, written at table[first], table[first + stride], ...
void cut(const Buffer& buffer, uint32_t parts, uint64_t element_bytes, std::vector<Chunk>& table,
         uint64_t first, uint64_t stride) {
  const uint64_t count = buffer.bytes / element_bytes;
  // Chunks begin on cache lines, relative to the buffer: no line is shared between two owners.
  const uint64_t even = (count + parts - 1) / parts * element_bytes;
  const uint64_t size = shm::round_up(even, kCacheLine);
  for (uint32_t i = 0; i < parts; ++i) {
    const uint64_t begin = std::min(uint64_t{i} * size, buffer.bytes);
    const uint64_t end = std::min(begin + size, buffer.bytes);
    table[first + i * stride] = {static_cast<std::byte*>(buffer.data) + begin, end - begin};
  }
}

}  // namespace

std::vector<Chunk> chunk_table(const OperationArguments& arguments,
                               std::unique_ptr<std::byte[]>& temporaries) {
  const Program& program = *arguments.program;
  const uint64_t element = dtype_size(arguments.dtype);
  const uint64_t bytes = arguments.count * element;
  const uint32_t channels = program.channels();
  const uint32_t world = program.world();
  std::vector<Chunk> table(program.chunks(), Chunk{nullptr, 0});

  const auto check = [&](const std::vector<Buffer>& buffers, size_t count, const char* which) {
    require(
        buffers.size() == count, arguments,
        std::to_string(buffers.size()) + " " + which + " buffers, needs " + std::to_string(count));
    for (const Buffer& buffer : buffers) {
      require(buffer.bytes == bytes, arguments,
              std::string(which) + " buffer of " + std::to_string(buffer.bytes) + " bytes, needs " +
                  std::to_string(bytes));
    }
  };
  const auto check_chunks = [&](uint64_t inputs, uint64_t outputs) {
    require(program.inputs() == inputs && program.outputs() == outputs, arguments,
            "the program has " + std::to_string(program.inputs()) + " input and " +
                std::to_string(program.outputs()) + " output chunks, needs " +
                std::to_string(inputs) + " and " + std::to_string(outputs));
  };

  switch (program.collective()) {
    case Collective::kAllReduce:
    case Collective::kBroadcast: {
      const bool reduce = program.collective() == Collective::kAllReduce;
      const uint32_t parts = reduce ? channels * world : channels;
      check(arguments.inputs, 1, "input");
      check(arguments.outputs, 1, "output");
      check_chunks(parts, parts);
      cut(arguments.inputs[0], parts, element, table, 0, 1);
      cut(arguments.outputs[0], parts, element, table, parts, 1);
      break;
    }
    case Collective::kAllGather:
      check(arguments.inputs, 1, "input");
      check(arguments.outputs, world, "output");
      check_chunks(channels, uint64_t{channels} * world);
      cut(arguments.inputs[0], channels, element, table, 0, 1);
      for (uint32_t rank = 0; rank < world; ++rank) {
        cut(arguments.outputs[rank], channels, element, table, channels + rank, world);
      }
      break;
    case Collective::kBarrier:
      check(arguments.inputs, 0, "input");
      check(arguments.outputs, 0, "output");
      check_chunks(0, 0);
      break;
    default: require(false, arguments, "this build cannot run it");
  }

  if (program.temporaries() != 0) {
    // tmp[i] is as long as out[i mod outputs], so that a step may move one into the other.
    require(program.outputs() != 0, arguments, "temporaries without outputs");
    const auto length = [&](uint32_t i) {
      return table[program.inputs() + i % program.outputs()].bytes;
    };
    uint64_t total = 0;
    for (uint32_t i = 0; i < program.temporaries(); ++i)
      total += shm::round_up(length(i), kCacheLine);
    temporaries = std::make_unique_for_overwrite<std::byte[]>(total);
    uint64_t at = 0;
    for (uint32_t i = 0; i < program.temporaries(); ++i) {
      table[program.inputs() + program.outputs() + i] = {temporaries.get() + at, length(i)};
      at += shm::round_up(length(i), kCacheLine);
    }
  }
  // The executor takes a step's length from one of its chunks.
  const ProgramView view = program.view();
  for (uint32_t i = 0; i < view.channel_begin[channels]; ++i) {
    const Step& step = view.steps[i];
    require(step.src == kNoChunk || step.dst == kNoChunk ||
                table[step.src].bytes == table[step.dst].bytes,
            arguments, "step " + std::to_string(i) + " joins chunks of different lengths");
  }
  return table;
}

}  // namespace hybridcomm
