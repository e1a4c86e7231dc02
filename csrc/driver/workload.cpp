// Values, operations and checks.
#include "driver/workload.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/error.h"

namespace hybridcomm::driver {
namespace {

double load(DType dtype, const std::byte* at) {
  const auto read = [at]<class T>(T value) {
    std::memcpy(&value, at, sizeof(value));
    return value;
  };
  switch (dtype) {
    case DType::kUInt8: return read(uint8_t{});
    case DType::kInt8: return read(int8_t{});
    case DType::kInt16: return read(int16_t{});
    case DType::kInt32: return read(int32_t{});
    case DType::kInt64: return static_cast<double>(read(int64_t{}));
    case DType::kFloat16: return to_float(read(Float16{}));
    case DType::kBFloat16: return to_float(read(BFloat16{}));
    case DType::kFloat32: return read(float{});
    case DType::kFloat64: return read(double{});
    default: throw CommError(ErrorKind::kInvalid, "--dtype: the driver cannot check this type");
  }
}

void store(DType dtype, std::byte* at, uint32_t number) {
  const auto write = [at](auto value) { std::memcpy(at, &value, sizeof(value)); };
  switch (dtype) {
    case DType::kUInt8: return write(static_cast<uint8_t>(number));
    case DType::kInt8: return write(static_cast<int8_t>(number));
    case DType::kInt16: return write(static_cast<int16_t>(number));
    case DType::kInt32: return write(static_cast<int32_t>(number));
    case DType::kInt64: return write(static_cast<int64_t>(number));
    case DType::kFloat16: return write(from_float<Float16>(static_cast<float>(number)));
    case DType::kBFloat16: return write(from_float<BFloat16>(static_cast<float>(number)));
    case DType::kFloat32: return write(static_cast<float>(number));
    case DType::kFloat64: return write(static_cast<double>(number));
    default: throw CommError(ErrorKind::kInvalid, "--dtype: the driver cannot check this type");
  }
}

}  // namespace

std::vector<NamedProgram> load_programs(const std::vector<std::string>& prefixes, uint32_t rank) {
  std::vector<NamedProgram> programs;
  for (const std::string& prefix : prefixes) {
    const std::string path = prefix + ".rank" + std::to_string(rank);
    std::ifstream file(path, std::ios::binary);
    if (!file) throw CommError(ErrorKind::kInvalid, "cannot read " + path);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    try {
      programs.push_back({prefix.substr(prefix.find_last_of('/') + 1),
                          Program::parse(std::as_bytes(std::span(text.data(), text.size())))});
    } catch (const CommError& error) {
      throw CommError(ErrorKind::kInvalid, path + ": " + error.what());
    }
  }
  return programs;
}

void SharedStore::set(const std::string& key, const std::string& value) {
  const uint32_t at = fetch_add(table_.used, 1u);
  SharedTable::Entry& entry = table_.entries[at];
  if (at >= std::size(table_.entries) || key.size() >= sizeof(entry.key) ||
      value.size() >= sizeof(entry.value)) {
    throw CommError(ErrorKind::kSystem, "the driver's store is too small");
  }
  std::memcpy(entry.key, key.c_str(), key.size() + 1);
  std::memcpy(entry.value, value.c_str(), value.size() + 1);
  store_release(entry.ready, 1u);
}

std::optional<std::string> SharedStore::try_get(const std::string& key) {
  // The newest first: set() appends.
  for (size_t i = std::min<size_t>(load_acquire(table_.used), std::size(table_.entries));
       i-- > 0;) {
    SharedTable::Entry& entry = table_.entries[i];
    if (load_acquire(entry.ready) != 0 && key == entry.key) return std::string(entry.value);
  }
  return std::nullopt;
}

uint32_t Workload::value(uint64_t iteration, uint32_t rank, uint32_t part, uint64_t index) const {
  uint64_t bits = (((iteration * 1024 + rank) * 1024 + part) << 32 | index) + 1;
  bits = (bits ^ bits >> 31) * 0x9e3779b97f4a7c15u;
  return static_cast<uint32_t>((bits >> 40) % 13);
}

double Workload::reduced(uint64_t iteration, uint32_t part, uint64_t index) const {
  double result = value(iteration, 0, part, index);
  for (uint32_t rank = 1; rank < world_; ++rank) {
    const double next = value(iteration, rank, part, index);
    switch (options_.redop) {
      case RedOp::kSum: result += next; break;
      case RedOp::kMin: result = std::min(result, next); break;
      case RedOp::kMax: result = std::max(result, next); break;
      default: throw CommError(ErrorKind::kInvalid, "--op: the driver checks SUM, MIN and MAX");
    }
  }
  return result;
}

double Workload::expected(const Program& program, uint64_t iteration, uint32_t part,
                          uint64_t index) const {
  switch (program.collective()) {
    case Collective::kAllReduce:
    case Collective::kReduce: return reduced(iteration, 0, index);
    case Collective::kReduceScatter: return reduced(iteration, rank_, index);
    case Collective::kBroadcast: return value(iteration, program.root(), 0, index);
    case Collective::kScatter: return value(iteration, program.root(), rank_, index);
    case Collective::kAllToAll: return value(iteration, part, rank_, index);
    default: return value(iteration, part, 0, index);  // of each rank its tensor
  }
}

OperationArguments Workload::arguments(const NamedProgram& named) {
  const Program& program = *named.program;
  const bool root = rank_ == program.root();
  OperationArguments arguments;
  arguments.program = named.program;
  arguments.algorithm = named.name.substr(named.name.find('.') + 1).substr(0, 31);
  arguments.timeout = std::chrono::milliseconds(options_.timeout_ms);
  uint32_t inputs = 1, outputs = 1;
  switch (program.collective()) {
    case Collective::kBarrier: return arguments;
    case Collective::kAllReduce:
    case Collective::kBroadcast: break;
    case Collective::kAllGather: outputs = world_; break;
    case Collective::kReduceScatter: inputs = world_; break;
    case Collective::kAllToAll: inputs = outputs = world_; break;
    case Collective::kReduce: outputs = root ? 1 : 0; break;
    case Collective::kGather: outputs = root ? world_ : 0; break;
    case Collective::kScatter: inputs = root ? world_ : 0; break;
    case Collective::kSendRecv:
      throw CommError(ErrorKind::kInvalid, named.name + " is no collective");
  }
  arguments.dtype = options_.dtype;
  arguments.redop = options_.redop;
  arguments.count = options_.count;
  const uint64_t bytes = options_.count * dtype_size(options_.dtype);
  const auto lay_out = [bytes](std::vector<std::byte>& memory, uint32_t parts) {
    memory.resize(bytes * parts);
    std::vector<Buffer> buffers;
    for (uint32_t part = 0; part < parts; ++part) {
      buffers.push_back({memory.data() + part * bytes, bytes});
    }
    return buffers;
  };
  arguments.inputs = lay_out(input_, inputs);
  const bool one_tensor = inputs == 1 && outputs == 1;
  arguments.outputs = one_tensor ? arguments.inputs : lay_out(output_, outputs);
  return arguments;
}

std::string Workload::run(Communicator& communicator, const NamedProgram& named,
                          uint64_t iteration) {
  OperationArguments call = arguments(named);
  const std::vector<Buffer> outputs = call.outputs;
  const uint64_t size = dtype_size(options_.dtype);
  for (uint32_t part = 0; part < call.inputs.size(); ++part) {
    std::byte* input = static_cast<std::byte*>(call.inputs[part].data);
    for (uint64_t i = 0; i < options_.count; ++i) {
      store(options_.dtype, input + i * size, value(iteration, rank_, part, i));
    }
  }
  if (options_.async) {
    communicator.wait(communicator.submit(std::move(call)), std::chrono::milliseconds(0));
  } else {
    communicator.run(std::move(call));
  }
  for (uint32_t part = 0; part < outputs.size(); ++part) {
    std::byte* result = static_cast<std::byte*>(outputs[part].data);
    for (uint64_t i = 0; i < options_.count; ++i) {
      const double want = expected(*named.program, iteration, part, i);
      if (options_.plant == "stale" && iteration == 3) {
        store(options_.dtype, result + i * size, static_cast<uint32_t>(want) + 1);
      }
      const double got = load(options_.dtype, result + i * size);
      if (got == want) continue;
      std::ostringstream out;
      out << named.name << ", operation " << iteration << ", rank " << rank_ << ", element " << i
          << " of part " << part << ": " << got << " instead of " << want;
      return out.str();
    }
  }
  return {};
}

double Workload::time(Communicator& communicator, const NamedProgram& program) {
  OperationArguments call = arguments(program);
  const auto before = std::chrono::steady_clock::now();
  if (options_.async) {
    communicator.wait(communicator.submit(std::move(call)), std::chrono::milliseconds(0));
  } else {
    communicator.run(std::move(call));
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
}

}  // namespace hybridcomm::driver
