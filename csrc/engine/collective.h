// One collective on one rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "engine/operation.h"
#include "executor/advance.h"
#include "executor/program.h"

namespace hybridcomm {

// What the caller asks for. The buffers stay the caller's and must live until completion.
struct OperationArguments : Completion {
  std::shared_ptr<const Program> program;
  std::string algorithm;  // the program's name, at most 31 bytes; ranks must agree on it
  // What the caller called, for errors, where that is not the program's collective.
  const char* call_name = nullptr;
  DType dtype = DType::kUInt8;
  RedOp redop = RedOp::kSum;
  // Elements of one buffer where all are equally long, else of all. Ranks must agree on it, but
  // for an all_to_all, in which each pair must agree on what goes from one to the other.
  uint64_t count = 0;
  // Where buffers differ in length and all ranks know all lengths: a digest of the lengths, which
  // ranks must agree on; else 0.
  uint64_t splits = 0;
  // In number as the program's collective has them (chunk_table.cpp).
  std::vector<Buffer> inputs;
  std::vector<Buffer> outputs;
  // What follows in its place as part of the same call, once the steps and the epilogue are done.
  // It takes the next sequence number. All ranks must have it or none.
  std::function<OperationArguments()> then;
};

// Entries of the (pointer, bytes) table: program->chunks() of them, in the order inputs, outputs,
// temporaries. Throws CommError(kInvalid) if the buffers do not fit the program. The partition rule
// is hybridcomm/programs/partition.py's: ceil(count / parts) elements, rounded up to 64 bytes.
std::vector<Chunk> chunk_table(const OperationArguments& arguments,
                               std::unique_ptr<std::byte[]>& temporaries);

class CollectiveOperation final : public Operation {
 public:
  explicit CollectiveOperation(OperationArguments arguments)
      : Operation(std::move(static_cast<Completion&>(arguments))),
        arguments_(std::move(arguments)) {}

  const OperationArguments& arguments() const { return arguments_; }
  Collective collective() const { return arguments_.program->collective(); }
  const char* name() const override {
    return arguments_.call_name != nullptr ? arguments_.call_name : collective_name(collective());
  }
  std::string contents() const override;
  uint64_t bytes() const override { return arguments_.count * dtype_size(arguments_.dtype); }

 private:
  friend class Communicator;

  enum class Stage : uint8_t { kJoin, kPublish, kAgree, kRun };

  OperationArguments arguments_;
  Stage stage_ = Stage::kJoin;
  std::vector<Chunk> chunks_;
  std::unique_ptr<std::byte[]> temporaries_;
  std::vector<Lane> lanes_;
  std::vector<const void*> operands_;
  Execution execution_;
  Progress blocked_;  // the last thing it was blocked on while running
};

}  // namespace hybridcomm
