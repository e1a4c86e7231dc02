// One call of one collective on one rank: its arguments, and where it stands.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/wait.h"
#include "executor/advance.h"
#include "executor/program.h"

namespace hybridcomm {

struct Buffer {
  void* data = nullptr;
  uint64_t bytes = 0;
};

// What the caller asks for. The buffers stay the caller's and must live until completion.
struct OperationArguments {
  std::shared_ptr<const Program> program;
  std::string algorithm;  // the program's name, at most 31 bytes; ranks must agree on it
  DType dtype = DType::kUInt8;
  RedOp redop = RedOp::kSum;
  uint64_t count = 0;  // elements that each rank contributes
  // all_reduce, broadcast: one input and one output, usually the same. all_gather: one input and
  // `world` outputs. barrier: none.
  std::vector<Buffer> inputs;
  std::vector<Buffer> outputs;
  std::chrono::milliseconds timeout{0};  // 0: the group's
  // Runs once if the operation succeeded, before done() turns true: what must happen before the
  // caller may look at its buffers (a copy back into a strided tensor). Must not wait.
  std::function<void()> epilogue;
  // Runs once, after done() has turned true, on whichever thread finishes the operation, holding no
  // lock; null means success.
  std::function<void(const ErrorInfo*)> on_complete;
};

// Entries of the (pointer, bytes) table: program->chunks() of them, in the order inputs, outputs,
// temporaries. Throws CommError(kInvalid) if the buffers do not fit the program. The partition rule
// is hybridcomm/programs/partition.py's: ceil(count / parts) elements, rounded up to 64 bytes.
std::vector<Chunk> chunk_table(const OperationArguments& arguments,
                               std::vector<std::byte>& temporaries);

class Operation {
 public:
  explicit Operation(OperationArguments arguments) : arguments_(std::move(arguments)) {}

  const OperationArguments& arguments() const { return arguments_; }
  const char* name() const { return collective_name(arguments_.program->collective()); }
  uint64_t bytes() const { return arguments_.count * dtype_size(arguments_.dtype); }
  uint64_t sequence() const { return sequence_; }
  // True once it succeeded or failed. What it wrote is then visible to the caller.
  bool done() const { return observe(done_) != 0; }
  // Why it failed; null before it is done and if it succeeded.
  const ErrorInfo* error() const { return done() ? error_.get() : nullptr; }

 private:
  friend class Communicator;

  enum class Stage : uint8_t { kJoin, kPublish, kAgree, kRun };

  OperationArguments arguments_;
  uint64_t sequence_ = 0;
  Clock::time_point started_{};
  Clock::time_point deadline_{};
  std::chrono::milliseconds timeout_{0};
  Stage stage_ = Stage::kJoin;
  std::vector<Chunk> chunks_;
  std::vector<std::byte> temporaries_;
  std::vector<Lane> lanes_;
  std::vector<const void*> operands_;
  Execution execution_;
  Progress blocked_;  // the last thing it was blocked on while running
  std::unique_ptr<const ErrorInfo> error_;
  mutable uint32_t done_ = 0;
};

}  // namespace hybridcomm
