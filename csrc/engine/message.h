// One send or receive on one rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/dtype.h"
#include "engine/operation.h"

namespace hybridcomm {

// What the caller asks for. The buffer stays the caller's: a send's until it is done, which means
// that its last byte lies in a slot and not that it was received; a receive's likewise, until its
// last byte lies in the buffer.
struct MessageArguments : Completion {
  enum class Kind : uint8_t { kSend, kRecv };

  Kind kind = Kind::kSend;
  int peer = -1;  // the other rank; -1: any, for a receive only
  int32_t tag = 0;
  DType dtype = DType::kUInt8;
  uint64_t count = 0;  // elements; both sides must name the same dtype and count
  Buffer buffer;       // count elements, without gaps
};

class Message final : public Operation {
 public:
  explicit Message(MessageArguments arguments)
      : Operation(std::move(static_cast<Completion&>(arguments))),
        arguments_(std::move(arguments)) {}

  const MessageArguments& arguments() const { return arguments_; }
  bool receives() const { return arguments_.kind == MessageArguments::Kind::kRecv; }
  const char* name() const override { return receives() ? "recv" : "send"; }
  std::string contents() const override;
  uint64_t bytes() const override { return arguments_.buffer.bytes; }
  int peer() const override { return arguments_.peer >= 0 ? arguments_.peer : source_; }
  // The rank that sent it, once it is done; -1 if it failed before any had.
  int source() const { return source_; }

 private:
  friend class Messenger;
  friend class Pair;

  MessageArguments arguments_;
  // Owned by whoever serves.
  bool begun_ = false;  // a slot holds its first bytes, or it was matched with a message
  uint64_t moved_ = 0;  // payload bytes that went into slots or came out of them
  int source_ = -1;
};

}  // namespace hybridcomm
