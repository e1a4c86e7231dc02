// What a rank of the driver does: operations whose every result element is known beforehand.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/store.h"
#include "driver/options.h"
#include "engine/communicator.h"
#include "executor/program.h"

namespace hybridcomm::driver {

struct NamedProgram {
  std::string name;
  std::shared_ptr<const Program> program;
};

// One rank's programs, from PREFIX.rank<rank>. Throws CommError naming the file.
std::vector<NamedProgram> load_programs(const std::vector<std::string>& prefixes, uint32_t rank);

// The rendezvous, in memory that forked ranks share. Each key has one writer.
struct SharedTable {
  struct Entry {
    uint32_t ready = 0;
    char key[60] = {};
    char value[640] = {};
  };
  uint32_t used = 0;
  Entry entries[600];
};

class SharedStore : public KeyValueStore {
 public:
  explicit SharedStore(SharedTable& table) : table_(table) {}
  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> try_get(const std::string& key) override;

 private:
  SharedTable& table_;
};

// Inputs and outputs of one operation, filled and checked. What one rank has for another, or gets
// from another, is as long for all.
class Workload {
 public:
  Workload(const Options& options, uint32_t rank, uint32_t world)
      : options_(options), rank_(rank), world_(world) {}

  // Runs operation number `iteration`; throws what it throws. Returns a description of the first
  // wrong element, empty if there is none.
  std::string run(Communicator& communicator, const NamedProgram& program, uint64_t iteration);
  // The same without filling and checking; returns the seconds it took.
  double time(Communicator& communicator, const NamedProgram& program);

 private:
  // Lays out the buffers; in place where input and output are one tensor.
  OperationArguments arguments(const NamedProgram& program);
  // What rank `rank` contributes at `index` of its buffer `part`: small integers, which every dtype
  // holds exactly.
  uint32_t value(uint64_t iteration, uint32_t rank, uint32_t part, uint64_t index) const;
  // What must be at `index` of this rank's output buffer `part`.
  double expected(const Program& program, uint64_t iteration, uint32_t part, uint64_t index) const;
  double reduced(uint64_t iteration, uint32_t part, uint64_t index) const;

  const Options& options_;
  uint32_t rank_;
  uint32_t world_;
  std::vector<std::byte> input_;
  std::vector<std::byte> output_;
};

}  // namespace hybridcomm::driver
