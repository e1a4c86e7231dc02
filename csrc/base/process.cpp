// pidfds, and the table that shares them among groups.
#include "base/process.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>

#include "base/error.h"

namespace hybridcomm {
namespace {

// Numbers of Linux 5.1 and 5.3, the same on every architecture; older libc headers lack them.
constexpr long kSysPidfdSendSignal = 424;
constexpr long kSysPidfdOpen = 434;

// Never destroyed: groups may outlive static objects at exit.
struct Table {
  std::mutex mutex;
  std::map<ProcessIdentity, std::weak_ptr<Process>> known;
  std::shared_ptr<Process> self;
  pid_t self_pid = 0;
};

Table& table() {
  static Table* instance = new Table;
  return *instance;
}

ProcessIdentity random_identity() {
  ProcessIdentity identity{};
  if (getrandom(identity.data(), sizeof(identity), 0) != sizeof(identity)) {
    throw system_error("getrandom");
  }
  return identity;
}

bool is_pidfd(int fd) {
  return syscall(kSysPidfdSendSignal, fd, 0, nullptr, 0) == 0 || errno == EPERM || errno == ESRCH;
}

}  // namespace

std::shared_ptr<Process> Process::self() {
  Table& t = table();
  const std::lock_guard<std::mutex> lock(t.mutex);
  if (t.self == nullptr || t.self_pid != getpid()) {
    const int fd = static_cast<int>(syscall(kSysPidfdOpen, getpid(), 0));
    if (fd < 0) throw system_error("pidfd_open (Linux 5.3 or newer is needed)");
    t.self.reset(new Process(random_identity(), fd));
    t.self_pid = getpid();
    t.known[t.self->identity()] = t.self;
  }
  return t.self;
}

std::shared_ptr<Process> Process::adopt(const ProcessIdentity& identity, int pidfd) {
  if (!is_pidfd(pidfd)) {
    close(pidfd);
    throw CommError(ErrorKind::kSystem, "a peer handed over a descriptor that is not a pidfd");
  }
  Table& t = table();
  const std::lock_guard<std::mutex> lock(t.mutex);
  std::erase_if(t.known, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Process>& slot = t.known[identity];
  if (std::shared_ptr<Process> known = slot.lock()) {
    close(pidfd);
    return known;
  }
  std::shared_ptr<Process> process(new Process(identity, pidfd));
  slot = process;
  return process;
}

std::shared_ptr<Process> Process::find(int pid) {
  const int fd = static_cast<int>(syscall(kSysPidfdOpen, pid, 0));
  if (fd < 0) return nullptr;
  return std::shared_ptr<Process>(new Process({}, fd));
}

Process::~Process() { close(pidfd_); }

bool Process::alive() const {
  pollfd query{pidfd_, POLLIN, 0};
  return poll(&query, 1, 0) != 1;
}

}  // namespace hybridcomm
