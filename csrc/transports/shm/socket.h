// SOCK_SEQPACKET sockets of the abstract namespace, non-blocking, that carry descriptors.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hybridcomm::shm {

// A descriptor that is closed with its owner.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~Descriptor() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

inline constexpr std::size_t kMaxPacket = 8192;
inline constexpr std::size_t kMaxDescriptors = 200;  // the kernel's limit is 253

// A listening socket under `name` (without the leading NUL). Throws CommError(kSystem).
Descriptor listen_abstract(const std::string& name);
// Invalid if nobody has connected, or if who did runs under another uid (it is hung up on).
Descriptor accept_peer(const Descriptor& listener);
// Invalid if nobody listens under that name in this network namespace, or not yet. Throws
// CommError(kSystem) if the listener runs under another uid.
Descriptor connect_abstract(const std::string& name);

enum class Receipt { kNothing, kPacket, kClosed };

struct Packet {
  std::vector<std::byte> bytes;
  std::vector<Descriptor> descriptors;
};

// Receipt::kClosed also if what came is malformed (truncated, too many descriptors).
Receipt receive(const Descriptor& socket, Packet& packet);
// False if the peer is gone. Packets are far smaller than a socket's buffer, so a full buffer means
// a peer that does not read, and counts as gone.
bool send(const Descriptor& socket, std::span<const std::byte> bytes, std::span<const int> fds);

}  // namespace hybridcomm::shm
