// Programs for tests: those of the algorithms, as tests/csrc/write_programs.py wrote them, and ones
// that a test makes step by step.
#pragma once

#include <cstring>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "executor/program.h"

namespace programs {

using namespace hybridcomm;

using Bytes = std::vector<std::byte>;

// Where an algorithm's programs lie, as the driver's --programs names them: "all_reduce.ring".
inline std::string prefix(const std::string& name, uint32_t world, uint32_t channels = 1) {
  return HC_TEST_PROGRAMS "/w" + std::to_string(world) + "c" + std::to_string(channels) + "/" +
         name;
}

inline Bytes read(const std::string& name, uint32_t world, uint32_t rank, uint32_t channels = 1) {
  const std::string path = prefix(name, world, channels) + ".rank" + std::to_string(rank);
  std::ifstream file(path, std::ios::binary);
  if (!file) throw CommError(ErrorKind::kInvalid, "cannot read " + path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  Bytes bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

inline std::shared_ptr<const Program> load(const std::string& name, uint32_t world, uint32_t rank,
                                           uint32_t channels = 1) {
  return Program::parse(read(name, world, rank, channels));
}

// The flat form, written one step at a time, with nothing checked: tests also want wrong ones.
struct Writer {
  Collective collective = Collective::kAllReduce;
  uint32_t world = 2, rank = 0;
  uint32_t inputs = 0, outputs = 0, temporaries = 0;
  uint32_t root = kNoChunk;
  uint32_t min_slots = 1;
  uint32_t flags = 0;
  std::vector<Step> steps;
  std::vector<uint32_t> begin{0};  // of each channel but the first, and the end
  std::vector<uint32_t> peers;

  Writer& step(StepOp op, std::initializer_list<uint32_t> from, std::initializer_list<uint32_t> to,
               uint32_t src, uint32_t dst, uint32_t remote = kNoChunk, bool finish = false) {
    Step step{};
    step.op = op;
    step.flags = finish ? kFinish : 0;
    step.n_from = static_cast<uint16_t>(from.size());
    step.n_to = static_cast<uint16_t>(to.size());
    step.src = src;
    step.dst = dst;
    step.remote = remote;
    step.from_at = static_cast<uint32_t>(peers.size());
    peers.insert(peers.end(), from);
    step.to_at = static_cast<uint32_t>(peers.size());
    peers.insert(peers.end(), to);
    steps.push_back(step);
    return *this;
  }
  Writer& send(uint32_t to, uint32_t src) { return step(StepOp::kSend, {}, {to}, src, kNoChunk); }
  Writer& recv(uint32_t from, uint32_t dst) {
    return step(StepOp::kRecv, {from}, {}, kNoChunk, dst);
  }
  Writer& signal(std::initializer_list<uint32_t> to) {
    return step(StepOp::kSignal, {}, to, kNoChunk, kNoChunk);
  }
  Writer& wait(std::initializer_list<uint32_t> from) {
    return step(StepOp::kWait, from, {}, kNoChunk, kNoChunk);
  }
  Writer& next_channel() {
    begin.push_back(static_cast<uint32_t>(steps.size()));
    return *this;
  }

  Bytes bytes() const {
    const uint32_t channels = static_cast<uint32_t>(begin.size());
    const uint64_t table = (4 * (uint64_t{channels} + 1) + 7) / 8 * 8;
    const uint64_t total = 64 + table + sizeof(Step) * steps.size() + 4 * peers.size();
    Bytes out(total);
    size_t at = 0;
    const auto put = [&](auto value) {
      std::memcpy(out.data() + at, &value, sizeof(value));
      at += sizeof(value);
    };
    for (const char c : {'H', 'C', 'P', 'R'}) put(c);
    put(uint16_t{1});
    put(uint16_t{64});
    put(static_cast<uint16_t>(collective));
    put(static_cast<uint16_t>(channels));
    for (const uint32_t word :
         {world, rank, inputs, outputs, temporaries, static_cast<uint32_t>(steps.size()),
          static_cast<uint32_t>(peers.size()), root, flags, static_cast<uint32_t>(total), min_slots,
          0u, 0u}) {
      put(word);
    }
    for (const uint32_t first : begin) put(first);
    put(static_cast<uint32_t>(steps.size()));
    at = 64 + table;
    for (const Step& step : steps) put(step);
    for (const uint32_t peer : peers) put(peer);
    return out;
  }
  std::shared_ptr<const Program> parse() const { return Program::parse(bytes()); }
};

// What a parsed program says of itself, in the flat form again.
inline Bytes rewritten(const Program& program) {
  Writer writer;
  const ProgramView view = program.view();
  writer.collective = program.collective();
  writer.world = program.world();
  writer.rank = program.rank();
  writer.inputs = program.inputs();
  writer.outputs = program.outputs();
  writer.temporaries = program.temporaries();
  writer.root = program.root();
  writer.min_slots = program.min_slots();
  writer.flags = program.deterministic() ? 1 : 0;
  writer.begin.assign(view.channel_begin, view.channel_begin + view.channels);
  writer.steps.assign(view.steps, view.steps + view.channel_begin[view.channels]);
  uint32_t used = 0;
  for (const Step& step : writer.steps) used += uint32_t{step.n_from} + step.n_to;
  writer.peers.assign(view.peers, view.peers + used);
  return writer.bytes();
}

}  // namespace programs
