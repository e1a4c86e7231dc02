// Starting ranks, as threads or as forked processes.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "driver/options.h"
#include "driver/workload.h"

namespace hybridcomm::driver {

// A T in memory that forked children share with this process.
template <class T>
class SharedMemory {
 public:
  SharedMemory() {
    void* at = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw system_error("mapping the driver's memory");
    value_ = new (at) T{};
  }
  ~SharedMemory() { munmap(value_, sizeof(T)); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  T* operator->() const { return value_; }
  T& operator*() const { return *value_; }

 private:
  T* value_;
};

// A process that runs `body` and exits with what it returns; a CommError is printed and gives 1. It
// dies with this process.
pid_t start_process(const std::function<int()>& body);

// A group that joins through `table`, as every group of the forked ranks does.
std::shared_ptr<Communicator> join_group(const Options& options, uint32_t rank, uint32_t world,
                                         SharedTable& table, uint32_t* phase);

inline constexpr uint32_t kMaxRanks = 256;

// Runs `body(rank)` in a process for every rank and returns the sum of what they return. `started`
// is run in this process when all of them are there.
int on_every_process(uint32_t world, const std::function<int(uint32_t)>& body,
                     const std::function<void()>& started = {});

// Runs `body(rank, communicator)` on every rank and returns the sum of what the ranks return.
int on_every_rank(const Options& options, const std::function<int(uint32_t, Communicator&)>& body,
                  const std::function<void()>& started = {});

}  // namespace hybridcomm::driver
