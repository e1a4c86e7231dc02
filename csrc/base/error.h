// What can go wrong, as data: every layer throws CommError, and csrc/torch turns it into the Python
// class of the same kind.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace hybridcomm {

enum class ErrorKind : uint8_t {
  kNone = 0,
  kPeerLost = 1,  // a peer's process died or ended, or it destroyed the group
  kTimeout = 2,   // a deadline passed while waiting for a peer
  kMismatch = 3,  // ranks called different operations, or the same with different arguments
  kAborted = 4,   // somebody called abort
  kInvalid = 5,   // an argument of this rank's call is wrong; nothing was sent, nothing is lost
  kSystem = 6,    // the operating system refused, or memory that a peer wrote is not valid
};

struct ErrorInfo {
  ErrorKind kind = ErrorKind::kNone;
  std::string message;    // whole sentence: operation, sequence, group, size, ranks and reason
  std::string operation;  // "all_reduce"; empty if no operation was under way
  std::string group;
  uint64_t sequence = 0;  // of the operation within its group, from 1; 0 if none
  uint64_t bytes = 0;
  int rank = -1;  // this rank
  int peer = -1;  // the rank to blame; -1 if none
};

class CommError : public std::runtime_error {
 public:
  explicit CommError(ErrorInfo info) : std::runtime_error(info.message), info_(std::move(info)) {}
  CommError(ErrorKind kind, const std::string& message) : CommError(make(kind, message)) {}

  const ErrorInfo& info() const { return info_; }

 private:
  static ErrorInfo make(ErrorKind kind, const std::string& message) {
    ErrorInfo info;
    info.kind = kind;
    info.message = message;
    return info;
  }

  ErrorInfo info_;
};

// "what: strerror(errno)" as a CommError of kind kSystem. Call it before anything else can set
// errno.
CommError system_error(const std::string& what);

}  // namespace hybridcomm
