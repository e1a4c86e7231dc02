// The flight recorder's ring, its numbers and its recordings.
#include "engine/flight_recorder.h"

#include <thread>
#include <vector>

#include "check.h"

using namespace hybridcomm;

namespace {

const Clock::time_point kThen = Clock::time_point{} + std::chrono::seconds(1);

uint32_t add(FlightRecorder& recorder, const char* name, uint32_t rank = 0) {
  return recorder.add_group({name, "", rank, {0, 1, 2}});
}

uint64_t record(FlightRecorder& recorder, const RecordedCall& call, uint64_t sequence) {
  return recorder.record(call, sequence, kThen, std::chrono::milliseconds(7));
}

RecordedCall collective(uint32_t group) {
  RecordedCall call;
  call.group = group;
  call.name = "barrier";
  return call;
}

RecordedCall message(uint32_t group, bool receives, int peer) {
  RecordedCall call = collective(group);
  call.message = true;
  call.receives = receives;
  call.peer = peer;
  return call;
}

void keeps_the_last() {
  FlightRecorder recorder(5);
  const uint32_t group = add(recorder, "a");
  std::vector<uint64_t> tickets;
  for (uint64_t i = 1; i <= 12; ++i) tickets.push_back(record(recorder, collective(group), i));
  // What is overwritten is not touched any more.
  recorder.start(tickets[0], kThen);
  recorder.end(tickets[5], kThen, ErrorKind::kNone, -1);
  recorder.start(tickets[10], kThen);
  recorder.end(tickets[10], kThen, ErrorKind::kTimeout, -1);
  const FlightRecorder::Recording all = recorder.recording();
  CHECK(all.entries.size() == 5 && all.first == 1);
  for (size_t i = 0; i < 5; ++i) {
    const FlightRecorder::Entry& entry = all.entries[i];
    CHECK(entry.ticket == i + 8 && entry.sequence == i + 8);
    const bool touched = i == 3;
    CHECK((entry.started == kThen) == touched && (entry.ended == kThen) == touched);
    CHECK((entry.error == ErrorKind::kTimeout) == touched);
  }
  CHECK(all.status[group].enqueued == 12 && all.status[group].started == 11);
  CHECK(all.status[group].completed == 0);
}

void counts_messages_each_way() {
  FlightRecorder recorder(100);
  const uint32_t group = add(recorder, "a");
  record(recorder, message(group, false, 1), 1);
  record(recorder, message(group, true, 1), 2);
  const uint64_t any = record(recorder, message(group, true, -1), 3);
  record(recorder, message(group, false, 1), 4);
  record(recorder, message(group, false, 2), 5);
  CHECK(recorder.recording().entries[2].turn == 0);
  recorder.end(any, kThen, ErrorKind::kNone, 1);
  const auto entries = recorder.recording().entries;
  CHECK(entries[0].turn == 1 && entries[1].turn == 1 && entries[3].turn == 2);
  CHECK(entries[2].turn == 2 && entries[2].call.peer == 1);
  CHECK(entries[4].turn == 1);
}

void begins_anew_when_all_groups_are_gone() {
  FlightRecorder recorder(100);
  const uint32_t a = add(recorder, "a"), b = add(recorder, "b");
  const uint64_t old = record(recorder, collective(a), 1);
  recorder.remove_group(a);
  CHECK(add(recorder, "c") == 2 && recorder.recording().entries.size() == 1);
  recorder.remove_group(b);
  recorder.remove_group(2);
  // Until then they can be read.
  CHECK(recorder.recording().groups.size() == 3);
  const uint32_t d = add(recorder, "d");
  CHECK(d == 3 && recorder.recording().entries.empty());
  const uint64_t ticket = record(recorder, collective(d), 1);
  recorder.end(old, kThen, ErrorKind::kNone, -1);
  const FlightRecorder::Recording all = recorder.recording();
  CHECK(all.entries.size() == 1 && all.first == ticket);
  CHECK(all.entries[0].ended == Clock::time_point{} && all.groups[0].name == "d");
  CHECK(all.first_group == d && all.groups.size() == 1);

  // Another takes the name. The old one may go on, but is not heard of.
  const uint32_t e = add(recorder, "d");
  recorder.remove_group(d);
  CHECK(e == 4 && record(recorder, collective(d), 2) == 0);
  CHECK(record(recorder, collective(e), 1) != 0 && recorder.recording().entries.size() == 1);
  add(recorder, "f");
  CHECK(recorder.recording().groups.size() == 2);
}

void may_be_off() {
  FlightRecorder recorder(0);
  const uint32_t group = add(recorder, "a");
  CHECK(!recorder.enabled() && record(recorder, collective(group), 1) == 0);
  CHECK(recorder.recording().entries.empty());
}

void is_used_by_several_threads() {
  FlightRecorder recorder(64);
  const uint32_t group = add(recorder, "a");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (uint64_t n = 1; n <= 500; ++n) {
        const uint64_t ticket = record(recorder, collective(group), n);
        recorder.start(ticket, kThen);
        recorder.end(ticket, kThen, ErrorKind::kNone, -1);
        if (n % 100 == 0) CHECK(recorder.recording().entries.size() <= 64);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto entries = recorder.recording().entries;
  CHECK(entries.size() == 64);
  for (size_t i = 0; i < 64; ++i) CHECK(entries[i].ticket == 2000 - 63 + i);
}

}  // namespace

int main() {
  keeps_the_last();
  counts_messages_each_way();
  begins_anew_when_all_groups_are_gone();
  may_be_off();
  is_used_by_several_threads();
  return check_status();
}
