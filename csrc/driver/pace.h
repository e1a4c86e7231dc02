// Samples taken when they are asked for, so that a benchmark can take them in turn with others'.
//
// Rank 0 reads from standard input how many calls to make, a number a line, tells the other ranks,
// and writes the seconds of one call on the slowest rank, a number a line. End of input is the end.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace hybridcomm::driver {

// Made before the ranks are forked, and used by each of them. Each closes the ends that are not
// its own, and the process that forked them all ends, so that the end of rank 0 is the end of the
// others.
class Pace {
 public:
  explicit Pace(uint32_t world);
  ~Pace();
  Pace(const Pace&) = delete;
  Pace& operator=(const Pace&) = delete;

  // Samples until there is nothing more to do. `call` also runs once before each sample, so that no
  // rank begins much earlier than another.
  void sample(uint32_t rank, const std::function<void()>& call);

  void close_all();

 private:
  struct Pipe {
    int reads = -1;
    int writes = -1;
  };

  void keep_own_ends(uint32_t rank);
  // How many calls to make; 0 if there is nothing more to do.
  uint64_t next(uint32_t rank);
  void report(uint32_t rank, double seconds);

  uint32_t world_;
  std::vector<Pipe> requests_;  // from rank 0 to each other rank
  Pipe reports_;                // from the others to rank 0, doubles, each written at once
};

}  // namespace hybridcomm::driver
