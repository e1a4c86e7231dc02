// Region: memfd, seals, mmap.
#include "transports/shm/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

namespace hybridcomm::shm {
namespace {

// Shrinking a mapped file turns reads into SIGBUS; sealed, no peer can do that to us.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

uint64_t random_word() {
  uint64_t word = 0;
  if (getrandom(&word, sizeof(word), 0) != sizeof(word)) throw system_error("getrandom");
  return word;
}

void require(bool good, const std::string& what) {
  if (!good) throw CommError(ErrorKind::kInvalid, what);
}

void* map_shared(int fd, int flags, uint64_t bytes) {
  // NORESERVE: most links are never used, and must not count against the memory limit.
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED) {
    throw system_error("mapping " + std::to_string(bytes) + " bytes of shared memory");
  }
  return base;
}

}  // namespace

void validate(const Shape& shape) {
  require(shape.world >= 1 && shape.world <= kMaxWorld,
          "world size " + std::to_string(shape.world) + " is not within 1 to " +
              std::to_string(kMaxWorld));
  require(shape.channels >= 1 && shape.channels <= kMaxChannels,
          "channels " + std::to_string(shape.channels) + " is not within 1 to " +
              std::to_string(kMaxChannels));
  require(
      shape.slots >= 2 && shape.slots <= kMaxSlots,
      "slots " + std::to_string(shape.slots) + " is not within 2 to " + std::to_string(kMaxSlots));
  require(shape.slot_bytes >= kCacheLine && shape.slot_bytes <= (1u << 30) &&
              shape.slot_bytes % kCacheLine == 0,
          "slot_bytes " + std::to_string(shape.slot_bytes) +
              " is not a multiple of 64 within 64 to 2^30");
}

std::shared_ptr<Region> Region::initialise(void* base, const Shape& shape) {
  std::shared_ptr<Region> region(new Region(static_cast<std::byte*>(base), shape));
  RegionHeader& header = region->header();
  header.magic = kMagic;
  header.version = kLayoutVersion;
  header.header_bytes = sizeof(RegionHeader);
  header.shape = shape;
  header.region_bytes = region_bytes(shape);
  header.nonce = random_word();
  return region;
}

std::shared_ptr<Region> Region::create_anonymous(const Shape& shape) {
  validate(shape);
  return initialise(map_shared(-1, MAP_SHARED | MAP_ANONYMOUS, region_bytes(shape)), shape);
}

std::shared_ptr<Region> Region::create_memfd(const Shape& shape, int& fd) {
  validate(shape);
  fd = memfd_create("hybridcomm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) throw system_error("memfd_create");
  try {
    if (ftruncate(fd, static_cast<off_t>(region_bytes(shape))) != 0) {
      throw system_error("sizing the group's memfd");
    }
    if (fcntl(fd, F_ADD_SEALS, kSeals) != 0) throw system_error("sealing the group's memfd");
    return initialise(map_shared(fd, MAP_SHARED, region_bytes(shape)), shape);
  } catch (...) {
    close(fd);
    fd = -1;
    throw;
  }
}

std::shared_ptr<Region> Region::map(int fd, const Shape& shape) {
  validate(shape);
  const auto refuse = [](const std::string& why) {
    throw CommError(ErrorKind::kSystem, "the shared memory that rank 0 handed over " + why);
  };
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) refuse("is not a sealed memfd");
  struct stat status;
  if (fstat(fd, &status) != 0) throw system_error("fstat of the group's memfd");
  if (static_cast<uint64_t>(status.st_size) != region_bytes(shape)) {
    refuse("has " + std::to_string(status.st_size) + " bytes, not " +
           std::to_string(region_bytes(shape)));
  }
  void* base = map_shared(fd, MAP_SHARED, region_bytes(shape));
  std::shared_ptr<Region> region(new Region(static_cast<std::byte*>(base), shape));
  const RegionHeader& header = region->header();
  if (header.magic != kMagic) refuse("does not begin with hybridcomm's magic");
  if (header.version != kLayoutVersion || header.header_bytes != sizeof(RegionHeader)) {
    refuse("has layout version " + std::to_string(header.version) + ", this build has " +
           std::to_string(kLayoutVersion));
  }
  if (!(header.shape == shape) || header.region_bytes != region_bytes(shape)) {
    refuse("has another shape than was agreed");
  }
  return region;
}

Region::~Region() { munmap(base_, region_bytes(shape_)); }

LinkOut Region::link_out(uint32_t channel, uint32_t from, uint32_t to) const {
  LinkOut end;
  end.control = &link(channel, from, to);
  end.slots = slots(channel, from, to);
  end.bell = &control(to).bell;
  end.slot_bytes = shape_.slot_bytes;
  end.count = shape_.slots;
  return end;
}

LinkIn Region::link_in(uint32_t channel, uint32_t from, uint32_t to) const {
  LinkIn end;
  end.control = &link(channel, from, to);
  end.slots = slots(channel, from, to);
  end.bell = &control(from).bell;
  end.slot_bytes = shape_.slot_bytes;
  end.count = shape_.slots;
  return end;
}

}  // namespace hybridcomm::shm
