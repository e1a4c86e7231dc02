// A mapped region: creation, mapping, and the typed addresses inside it.
#pragma once

#include <memory>
#include <string>

#include "base/error.h"
#include "transports/shm/layout.h"

namespace hybridcomm::shm {

// Throws CommError(kInvalid) naming the field if the shape is out of bounds.
void validate(const Shape& shape);

class Region {
 public:
  // New memory, zeroed, with its header written. Anonymous memory for ranks that are threads of one
  // process (tests under ThreadSanitizer, which sees a race only within one mapping).
  static std::shared_ptr<Region> create_anonymous(const Shape& shape);
  // New memory behind a sealed memfd; `fd` receives the descriptor, which the caller closes.
  static std::shared_ptr<Region> create_memfd(const Shape& shape, int& fd);
  // Maps another rank's memfd. Checks the seals, the size and every field of the header against
  // `shape`: the descriptor came from another process.
  static std::shared_ptr<Region> map(int fd, const Shape& shape);

  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  const Shape& shape() const { return shape_; }
  RegionHeader& header() const { return *reinterpret_cast<RegionHeader*>(base_); }
  RankControl& control(uint32_t rank) const {
    return reinterpret_cast<RankControl*>(base_ + control_offset())[rank];
  }
  LinkControl& link(uint32_t channel, uint32_t from, uint32_t to) const {
    return reinterpret_cast<LinkControl*>(
        base_ + links_offset(shape_))[link_index(shape_, channel, from, to)];
  }
  std::byte* slots(uint32_t channel, uint32_t from, uint32_t to) const {
    return base_ + slots_offset(shape_) +
           link_index(shape_, channel, from, to) * ring_bytes(shape_);
  }

  LinkOut link_out(uint32_t channel, uint32_t from, uint32_t to) const;
  LinkIn link_in(uint32_t channel, uint32_t from, uint32_t to) const;

 private:
  Region(std::byte* base, const Shape& shape) : base_(base), shape_(shape) {}
  static std::shared_ptr<Region> initialise(void* base, const Shape& shape);

  std::byte* base_;
  Shape shape_;
};

}  // namespace hybridcomm::shm
