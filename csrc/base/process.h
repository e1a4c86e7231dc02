// Other processes of this machine: who they are, and whether they live.
//
// A process is watched through a pidfd that it handed over itself. A pidfd names one process for
// ever (numbers are reused), works across pid namespaces, and tells of a death at once; the end of
// a socket does not, because a forked child may hold the other end open.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

namespace hybridcomm {

// 128 random bits, drawn once per process and anew after a fork.
using ProcessIdentity = std::array<uint64_t, 2>;

class Process {
 public:
  // This process.
  static std::shared_ptr<Process> self();
  // The process behind `pidfd`, of which it takes ownership. Groups share one descriptor for each
  // process they know, so many groups cost few descriptors. Throws CommError(kSystem) if the
  // descriptor is not a pidfd: it came from another process.
  static std::shared_ptr<Process> adopt(const ProcessIdentity& identity, int pidfd);

  // The process that has number `pid` in our pid namespace now; null if there is none. Not shared
  // with groups: numbers are reused, so the caller must make sure that it is the one it means.
  static std::shared_ptr<Process> find(int pid);

  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  const ProcessIdentity& identity() const { return identity_; }
  int pidfd() const { return pidfd_; }
  bool alive() const;

 private:
  Process(const ProcessIdentity& identity, int pidfd) : identity_(identity), pidfd_(pidfd) {}

  ProcessIdentity identity_;
  int pidfd_;
};

}  // namespace hybridcomm
