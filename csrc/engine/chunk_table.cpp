// How a call's buffers are cut into the chunks that its program names.
#include "engine/operation.h"

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
  const uint64_t size = (even + kCacheLine - 1) / kCacheLine * kCacheLine;
  for (uint32_t i = 0; i < parts; ++i) {
    const uint64_t begin = std::min(uint64_t{i} * size, buffer.bytes);
    const uint64_t end = std::min(begin + size, buffer.bytes);
    table[first + i * stride] = {static_cast<std::byte*>(buffer.data) + begin, end - begin};
  }
}

}  // namespace

std::vector<Chunk> chunk_table(const OperationArguments& arguments,
                               std::vector<std::byte>& temporaries) {
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
    uint64_t largest = 0;
    for (const Chunk& chunk : table) largest = std::max(largest, chunk.bytes);
    const uint64_t size = (largest + kCacheLine - 1) / kCacheLine * kCacheLine;
    temporaries.resize(size * program.temporaries());
    for (uint32_t i = 0; i < program.temporaries(); ++i) {
      table[program.inputs() + program.outputs() + i] = {temporaries.data() + i * size, largest};
    }
  }
  return table;
}

}  // namespace hybridcomm
