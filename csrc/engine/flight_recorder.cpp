// The ring, and the numbers that entries of different ranks are matched by.
#include "engine/flight_recorder.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace hybridcomm {
namespace {

constexpr size_t kDefaultCapacity = 2000;
constexpr size_t kMostCapacity = 100'000'000;

size_t capacity_from_environment() {
  for (const char* name : {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}) {
    const char* const text = std::getenv(name);
    if (text == nullptr) continue;
    char* end = nullptr;
    const long long value = std::strtoll(text, &end, 10);
    if (end == text || *end != '\0' || value < 0 || value > static_cast<long long>(kMostCapacity)) {
      throw CommError(ErrorKind::kInvalid, std::string(name) + "='" + text +
                                               "' is no number of operations from 0 to " +
                                               std::to_string(kMostCapacity));
    }
    return static_cast<size_t>(value);
  }
  return kDefaultCapacity;
}

// Never destroyed: threads may outlive static objects.
FlightRecorder* g_recorder = nullptr;

}  // namespace

FlightRecorder& FlightRecorder::instance() {
  static const bool made = [] {
    g_recorder = new FlightRecorder(capacity_from_environment());
    // A forked child has no operations yet, and a lock that a thread of the parent may have held.
    pthread_atfork(nullptr, nullptr,
                   [] { g_recorder = new FlightRecorder(g_recorder->capacity_); });
    return true;
  }();
  static_cast<void>(made);
  return *g_recorder;
}

// ---- groups -------------------------------------------------------------------------------------

uint32_t FlightRecorder::add_group(Group group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  bool alone = true;
  for (Member& member : members_) {
    member.alive = member.alive && member.group.name != group.name;
    alone = alone && !member.alive;
  }
  if (alone) {
    first_group_ += static_cast<uint32_t>(members_.size());
    members_.clear();
    first_ = last_ + 1;
  }
  Member& member = members_.emplace_back();
  member.turns.resize(2 * group.global_ranks.size());
  member.group = std::move(group);
  return first_group_ + static_cast<uint32_t>(members_.size() - 1);
}

void FlightRecorder::remove_group(uint32_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (Member* const member = find_group(number)) member->alive = false;
}

FlightRecorder::Member* FlightRecorder::find_group(uint32_t number) {
  return number >= first_group_ ? &members_[number - first_group_] : nullptr;
}

// ---- operations ---------------------------------------------------------------------------------

uint64_t FlightRecorder::record(const RecordedCall& call, uint64_t sequence,
                                Clock::time_point created, std::chrono::milliseconds timeout) {
  if (!enabled()) return 0;
  const std::lock_guard<std::mutex> lock(mutex_);
  Member* const member = find_group(call.group);
  if (member == nullptr) return 0;
  if (ring_.empty()) ring_.resize(capacity_);
  Entry& entry = ring_[++last_ % capacity_];
  entry.ticket = last_;
  entry.call = call;
  entry.sequence = sequence;
  entry.turn = call.message && call.peer >= 0 ? next_turn(*member, call) : 0;
  entry.created = created;
  entry.started = entry.ended = {};
  entry.error = ErrorKind::kNone;
  entry.timeout = timeout;
  entry.thread = std::this_thread::get_id();
  if (!call.message) member->status.enqueued = sequence;
  return last_;
}

void FlightRecorder::start(uint64_t ticket, Clock::time_point at) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Entry* const entry = find(ticket);
  if (entry == nullptr) return;
  entry->started = at;
  if (!entry->call.message) find_group(entry->call.group)->status.started = entry->sequence;
}

void FlightRecorder::end(uint64_t ticket, Clock::time_point at, ErrorKind error, int peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Entry* const entry = find(ticket);
  if (entry == nullptr) return;
  entry->ended = at;
  entry->error = error;
  Member& member = *find_group(entry->call.group);
  if (!entry->call.message) {
    if (error == ErrorKind::kNone) member.status.completed = entry->sequence;
  } else if (entry->turn == 0 && peer >= 0) {
    entry->call.peer = peer;
    entry->turn = next_turn(member, entry->call);
  }
}

FlightRecorder::Entry* FlightRecorder::find(uint64_t ticket) {
  // Of an earlier recording, whose groups are forgotten, or overwritten.
  if (ticket < first_) return nullptr;
  Entry& entry = ring_[ticket % capacity_];
  return entry.ticket == ticket ? &entry : nullptr;
}

uint64_t FlightRecorder::next_turn(Member& member, const RecordedCall& call) {
  return ++member.turns[2 * static_cast<size_t>(call.peer) + (call.receives ? 1 : 0)];
}

FlightRecorder::Recording FlightRecorder::recording() const {
  Recording recording;
  const std::lock_guard<std::mutex> lock(mutex_);
  recording.first = first_;
  recording.first_group = first_group_;
  for (const Member& member : members_) {
    recording.groups.push_back(member.group);
    recording.status.push_back(member.status);
  }
  const uint64_t oldest = std::max(first_, last_ >= capacity_ ? last_ - capacity_ + 1 : 1);
  for (uint64_t ticket = oldest; ticket <= last_; ++ticket) {
    recording.entries.push_back(ring_[ticket % capacity_]);
  }
  return recording;
}

}  // namespace hybridcomm
