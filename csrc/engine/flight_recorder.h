// The last operations of this process, of all its groups: what a hang or a failure is explained
// with afterwards.
//
// A ring of fixed-size entries, taken once. An operation is entered when it is admitted and updated
// when it begins and ends, under one lock that is held for some tens of nanoseconds. Sequence
// numbers, times and the time-out are the operation's own, so the recorder reads no clock.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/wait.h"

namespace hybridcomm {

// The shape of one tensor, or of a list of equal ones with their number in front.
struct Outline {
  static constexpr size_t kMostDimensions = 8;

  bool given = false;
  uint8_t element = 0;  // the caller's number for the dtype
  uint8_t dimensions = 0;
  std::array<int64_t, kMostDimensions> sizes{};
};

// What the caller knows of an operation.
struct RecordedCall {
  uint32_t group = 0;          // from add_group()
  const char* name = nullptr;  // lives for ever
  bool message = false;
  bool receives = false;  // of a message
  int peer = -1;          // of a message: the other rank; -1: any
  Outline input;
  Outline output;
  std::shared_ptr<void> frames;  // where it was called; null if nobody asked
};

class FlightRecorder {
 public:
  struct Group {
    std::string name;
    std::string description;
    uint32_t rank = 0;
    std::vector<uint64_t> global_ranks;  // [rank of the group]
  };
  // Of the collectives; 0: none.
  struct Status {
    uint64_t enqueued = 0;
    uint64_t started = 0;
    uint64_t completed = 0;
  };
  struct Entry {
    uint64_t ticket = 0;
    RecordedCall call;
    uint64_t sequence = 0;
    // Of a message: how many have gone that way between the two ranks, this one included. Both
    // count alike. 0 while the peer is not known.
    uint64_t turn = 0;
    Clock::time_point created{};
    Clock::time_point started{};  // zero: not begun
    Clock::time_point ended{};    // zero: not ended
    ErrorKind error = ErrorKind::kNone;
    std::chrono::milliseconds timeout{0};
    std::thread::id thread;
  };
  struct Recording {
    std::vector<Group> groups;
    std::vector<Status> status;  // of each group
    std::vector<Entry> entries;  // in the order of admission
    uint64_t first = 0;          // the ticket from which entries are numbered
    uint32_t first_group = 0;    // the number of groups[0]
  };

  // The process's. The first call reads TORCH_FR_BUFFER_SIZE, or else TORCH_NCCL_TRACE_BUFFER_SIZE:
  // the number of entries, 2000 by default, 0 for none. Throws CommError(kInvalid) if that is no
  // number.
  static FlightRecorder& instance();

  explicit FlightRecorder(size_t capacity) : capacity_(capacity) {}

  bool enabled() const { return capacity_ > 0; }

  // Makes a group known. When all groups of before are gone, a new recording begins: entries are
  // numbered from 0, on every rank alike. A group is gone when it is removed or when another takes
  // its name (torch may keep a destroyed one alive for ever); it may still be used, unrecorded.
  uint32_t add_group(Group group);
  void remove_group(uint32_t number);

  // Enters an operation; returns the ticket to update it by, 0 if nothing is recorded. `peer` is
  // a message's, known by its end.
  uint64_t record(const RecordedCall& call, uint64_t sequence, Clock::time_point created,
                  std::chrono::milliseconds timeout);
  void start(uint64_t ticket, Clock::time_point at);
  void end(uint64_t ticket, Clock::time_point at, ErrorKind error, int peer);

  Recording recording() const;

 private:
  struct Member {
    Group group;
    Status status;
    bool alive = true;
    std::vector<uint64_t> turns;  // [peer][whether it was received]
  };

  Entry* find(uint64_t ticket);
  // Null if it is of an earlier recording.
  Member* find_group(uint32_t number);
  static uint64_t next_turn(Member& member, const RecordedCall& call);

  const size_t capacity_;

  mutable std::mutex mutex_;  // guards what follows
  std::vector<Entry> ring_;   // [ticket % capacity], taken at the first entry
  std::vector<Member> members_;
  uint64_t last_ = 0;         // ticket
  uint64_t first_ = 1;        // of this recording
  uint32_t first_group_ = 0;  // the number of members_[0]
};

}  // namespace hybridcomm
