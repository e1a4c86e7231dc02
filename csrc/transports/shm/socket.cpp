// Abstract sockets with SCM_RIGHTS.
#include "transports/shm/socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/error.h"

namespace hybridcomm::shm {
namespace {

Descriptor new_socket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) throw system_error("making a unix socket");
  return socket;
}

socklen_t abstract_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  if (name.empty() || name.size() + 1 > sizeof(address.sun_path)) {
    throw CommError(ErrorKind::kInvalid,
                    "socket name of " + std::to_string(name.size()) + " bytes does not fit");
  }
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

bool same_user(const Descriptor& socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == geteuid();
}

}  // namespace

void Descriptor::reset(int fd) {
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
}

Descriptor listen_abstract(const std::string& name) {
  Descriptor socket = new_socket();
  sockaddr_un address;
  const socklen_t size = abstract_address(name, address);
  if (bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(socket.get(), SOMAXCONN) != 0) {
    throw system_error("listening on a unix socket");
  }
  return socket;
}

Descriptor accept_peer(const Descriptor& listener) {
  Descriptor peer(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!peer) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
      throw system_error("accepting a peer");
    }
    return {};
  }
  if (!same_user(peer)) return {};
  return peer;
}

Descriptor connect_abstract(const std::string& name) {
  Descriptor socket = new_socket();
  sockaddr_un address;
  const socklen_t size = abstract_address(name, address);
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    // EAGAIN: the listener's queue is full. Both pass.
    if (errno == ECONNREFUSED || errno == EAGAIN) return {};
    throw system_error("connecting to rank 0's unix socket");
  }
  if (!same_user(socket)) {
    throw CommError(ErrorKind::kSystem,
                    "rank 0's unix socket belongs to another user; all ranks of a group on one "
                    "host must run under one uid");
  }
  return socket;
}

Receipt receive(const Descriptor& socket, Packet& packet) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)];
  packet.bytes.resize(kMaxPacket);
  packet.descriptors.clear();
  iovec part{packet.bytes.data(), packet.bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t size = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  // Linux looks for a packet first and then, if there was none, for the end: a peer that sends and
  // closes in between seems to have closed without sending. A second look finds the packet.
  if (size == 0) {
    message.msg_controllen = sizeof(control);
    size = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  }
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return Receipt::kNothing;
  if (size > 0) {
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
        packet.descriptors.emplace_back(fd);
      }
    }
  }
  if (size <= 0 || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) return Receipt::kClosed;
  packet.bytes.resize(static_cast<std::size_t>(size));
  return Receipt::kPacket;
}

bool send(const Descriptor& socket, std::span<const std::byte> bytes, std::span<const int> fds) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)] = {};
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
  }
  return sendmsg(socket.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

}  // namespace hybridcomm::shm
