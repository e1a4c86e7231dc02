// All ranks of a program in one thread, and the oracle that says what they must come to.
#pragma once

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/collective.h"
#include "programs.h"
#include "transports/shm/region.h"

namespace simulation {

using namespace hybridcomm;

using Random = std::mt19937_64;

// ---- numbers ------------------------------------------------------------------------------------

// bfloat16 on its own terms, so that the oracle shares nothing with what it checks.
inline float widen(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

inline uint16_t narrow(float value) {  // to nearest, ties to even; no NaN comes here
  uint32_t wide;
  std::memcpy(&wide, &value, sizeof(wide));
  return static_cast<uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
}

// An element as the oracle sees it: exactly what the dtype holds.
inline double rounded(DType dtype, double value) {
  switch (dtype) {
    case DType::kBFloat16: return widen(narrow(static_cast<float>(value)));
    case DType::kFloat32: return static_cast<float>(value);
    default: return value;
  }
}

inline void store(DType dtype, std::byte* at, double value) {
  const auto write = [at](auto element) { std::memcpy(at, &element, sizeof(element)); };
  switch (dtype) {
    case DType::kBFloat16: return write(narrow(static_cast<float>(value)));
    case DType::kFloat32: return write(static_cast<float>(value));
    case DType::kUInt8: return write(static_cast<uint8_t>(value));
    default: return write(static_cast<int32_t>(value));
  }
}

inline double load(DType dtype, const std::byte* at) {
  const auto read = [at](auto element) {
    std::memcpy(&element, at, sizeof(element));
    return element;
  };
  switch (dtype) {
    case DType::kBFloat16: return widen(read(uint16_t{}));
    case DType::kFloat32: return read(float{});
    case DType::kUInt8: return read(uint8_t{});
    default: return read(int32_t{});
  }
}

// ---- one operation ------------------------------------------------------------------------------

struct Case {
  std::string name;  // of the program, without world and channels
  uint32_t world = 2;
  uint32_t channels = 1;
  uint32_t slots = 2;
  uint64_t slot_bytes = 64;
  DType dtype = DType::kFloat32;
  RedOp redop = RedOp::kSum;
  uint64_t count = 1;  // elements
  bool in_place = true;
  bool uneven = false;  // parts of the ranks differ in length, where the collective has parts
  uint32_t budget = 0;  // 0: drawn anew for each turn
  uint64_t seed = 1;

  std::string text() const {
    return name + " world " + std::to_string(world) + " channels " + std::to_string(channels) +
           " slots " + std::to_string(slots) + "x" + std::to_string(slot_bytes) + " " +
           dtype_name(dtype) + " " + redop_name(redop) + " count " + std::to_string(count) +
           (in_place ? " in place" : "") + (uneven ? " uneven" : "") + " budget " +
           std::to_string(budget) + " seed " + std::to_string(seed);
  }
};

// What rank `rank` contributes at `index` of its input buffer `part` of operation `call`: distinct,
// and with sums that round.
inline double contribution(const Case& c, uint32_t call, uint32_t rank, uint32_t part,
                           uint64_t index) {
  uint64_t bits = (c.seed * 64 + call * 16 + rank) * 0x9e3779b97f4a7c15u + index;
  bits += part * 0xd1342543de82ef95u;
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
  bits ^= bits >> 31;
  const double fraction = static_cast<double>(bits >> 11) * 0x1p-53;
  switch (c.dtype) {
    case DType::kUInt8: return std::floor(fraction * 256);
    case DType::kInt32: return std::floor(fraction * 2'000'000) - 1'000'000;
    default: return rounded(c.dtype, (fraction - 0.3) * std::exp2(bits % 9));
  }
}

// a (op) b, as the dtype's accumulator holds it.
inline double combine(const Case& c, double a, double b) {
  if (c.redop == RedOp::kMax) return std::max(a, b);
  if (c.dtype == DType::kUInt8) return std::fmod(a + b, 256);
  return c.dtype == DType::kInt32
             ? a + b
             : static_cast<float>(static_cast<float>(a) + static_cast<float>(b));
}

// The order in which a piece is reduced, as the verifier says it, "((0 + 1) + 2)", in postfix form:
// a rank is pushed, -n reduces the last n.
class Expression {
 public:
  explicit Expression(const std::string& text) {
    std::vector<int> operands;
    for (size_t at = 0; at < text.size(); ++at) {
      if (text[at] == '(') {
        operands.push_back(0);
      } else if (text[at] == ')') {
        postfix_.push_back(-operands.back());
        operands.pop_back();
        if (!operands.empty()) ++operands.back();
      } else if (std::isdigit(static_cast<unsigned char>(text[at])) != 0) {
        size_t digits = 0;
        postfix_.push_back(std::stoi(text.substr(at), &digits));
        at += digits - 1;
        if (!operands.empty()) ++operands.back();
      }
    }
  }

  // Each reduction adds up in rank order and rounds once; the last one also takes the average.
  template <class Of>
  double value(const Case& c, Of&& of) const {
    std::vector<double> stack;
    for (size_t at = 0; at < postfix_.size(); ++at) {
      if (postfix_[at] >= 0) {
        stack.push_back(of(static_cast<uint32_t>(postfix_[at])));
        continue;
      }
      const size_t first = stack.size() - static_cast<size_t>(-postfix_[at]);
      double sum = stack[first];
      for (size_t i = first + 1; i < stack.size(); ++i) sum = combine(c, sum, stack[i]);
      stack.resize(first);
      stack.push_back(at + 1 == postfix_.size() ? finished(c, sum) : rounded(c.dtype, sum));
    }
    return stack.back();
  }

 private:
  static double finished(const Case& c, double sum) {
    if (c.redop != RedOp::kAvg) return rounded(c.dtype, sum);
    if (c.dtype == DType::kInt32) return std::trunc(sum / c.world);
    return rounded(c.dtype, static_cast<float>(sum) / static_cast<float>(c.world));
  }

  std::vector<int> postfix_;
};

// Per piece; none for a collective that does not reduce.
inline std::vector<Expression> expressions(const Case& c) {
  std::vector<Expression> result;
  std::ifstream file(programs::prefix(c.name, c.world, c.channels) + ".expressions");
  for (std::string line; std::getline(file, line);) result.emplace_back(line);
  return result;
}

// The part in which element `index` of `count` lies: cut into equal ones on cache line boundaries.
inline uint64_t part_of(const Case& c, uint64_t count, uint64_t parts, uint64_t index) {
  const uint64_t size = dtype_size(c.dtype);
  return index / (((count + parts - 1) / parts * size + 63) / 64 * 64 / size);
}

// ---- buffers ------------------------------------------------------------------------------------

// Buffers of one rank.
struct Buffers {
  uint32_t inputs, outputs;
};

inline Buffers buffers_of(const Case& c, Collective collective, uint32_t rank) {
  const bool root = rank == c.world / 2;
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kBroadcast: return {1, 1};
    case Collective::kAllGather: return {1, c.world};
    case Collective::kReduceScatter: return {c.world, 1};
    case Collective::kAllToAll: return {c.world, c.world};
    case Collective::kReduce: return {1, root ? 1u : 0u};
    case Collective::kGather: return {1, root ? c.world : 0};
    case Collective::kScatter: return {root ? c.world : 0, 1};
    default: return {0, 0};
  }
}

// Elements that go from one rank to another.
inline uint64_t elements(const Case& c, Collective collective, uint32_t from, uint32_t to) {
  const auto some = [&c](uint32_t number) { return c.count * (number % 4) / 3; };
  if (!c.uneven) return c.count;
  switch (collective) {
    case Collective::kAllGather:
    case Collective::kGather: return some(from + 2);
    case Collective::kReduceScatter:
    case Collective::kScatter: return some(to + 2);
    case Collective::kAllToAll: return some(from * 3 + to * 5 + 2);
    default: return c.count;
  }
}

// What must be at `index` of output buffer `buffer` of a rank.
inline double expected(const Case& c, const std::vector<Expression>& reduced, Collective collective,
                       uint32_t call, uint32_t rank, uint32_t buffer, uint64_t index) {
  const uint32_t root = c.world / 2;
  const auto reduction = [&](uint64_t piece, uint32_t part) {
    return reduced.at(piece).value(
        c, [&](uint32_t from) { return contribution(c, call, from, part, index); });
  };
  const uint64_t own = elements(c, collective, root, rank);
  switch (collective) {
    case Collective::kAllReduce:
      return reduction(part_of(c, c.count, uint64_t{c.channels} * c.world, index), 0);
    case Collective::kReduce: return reduction(part_of(c, c.count, c.channels, index), 0);
    case Collective::kReduceScatter:
      return reduction(part_of(c, own, c.channels, index) * c.world + rank, rank);
    case Collective::kBroadcast: return contribution(c, call, root, 0, index);
    case Collective::kScatter: return contribution(c, call, root, rank, index);
    case Collective::kAllToAll: return contribution(c, call, buffer, rank, index);
    default: return contribution(c, call, buffer, 0, index);  // of rank `buffer`
  }
}

// ---- ranks --------------------------------------------------------------------------------------

inline constexpr uint64_t kGuard = 64;
inline constexpr auto kUntouched = std::byte{0xa5};

// One call on one rank: buffers with guards around them, and the execution.
struct Call {
  OperationArguments arguments;
  std::vector<std::byte> memory;  // all buffers, with a guard before and after each
  std::unique_ptr<std::byte[]> temporaries;
  std::vector<Chunk> chunks;
  std::vector<Chunk> remote;
  std::vector<Lane> lanes;
  std::vector<const void*> operands;
  Execution x;
};

class Simulation {
 public:
  Simulation(const Case& c, uint32_t calls,
             std::vector<std::shared_ptr<const Program>> programs = {})
      : case_(c), reduced_(expressions(c)), random_(c.seed), programs_(std::move(programs)) {
    region_ = shm::Region::create_anonymous({c.world, c.channels, c.slots, c.slot_bytes});
    if (programs_.empty()) {
      for (uint32_t rank = 0; rank < c.world; ++rank) {
        programs_.push_back(programs::load(c.name, c.world, rank, c.channels));
      }
    }
    const uint32_t links = c.channels * c.world;
    for (uint32_t rank = 0; rank < c.world; ++rank) {
      out_.emplace_back(links);
      in_.emplace_back(links);
      for (uint32_t i = 0; i < links; ++i) {
        if (i % c.world == rank) continue;
        out_[rank][i] = region_->link_out(i / c.world, rank, i % c.world);
        in_[rank][i] = region_->link_in(i / c.world, i % c.world, rank);
      }
      calls_.emplace_back(calls);
      for (uint32_t call = 0; call < calls; ++call) set_up(rank, call);
    }
    for (uint32_t call = 0; call < calls; ++call) share(call);
    next_.assign(c.world, 0);
  }

  // Runs all calls to their end. False if that cannot be, because each rank but `held`, which gets
  // no turn, is done or blocked on another, or because a message had another size than was due.
  bool run(uint32_t held = kNoChunk) {
    std::vector<bool> idle(case_.world);
    const auto wake = [&] {
      for (uint32_t rank = 0; rank < case_.world; ++rank) idle[rank] = rank == held || done(rank);
    };
    wake();
    uint32_t favourite = 0;
    while (std::find(idle.begin(), idle.end(), false) != idle.end()) {
      // Bursts: for a while one rank gets most of the turns.
      if (random_() % 64 == 0) favourite = static_cast<uint32_t>(random_() % case_.world);
      const auto rank =
          random_() % 2 == 0 ? favourite : static_cast<uint32_t>(random_() % case_.world);
      if (idle[rank]) continue;
      switch (turn(rank, case_.budget != 0 ? case_.budget : 1 + random_() % 9)) {
        case Outcome::kCorrupt: return false;
        case Outcome::kBlocked: idle[rank] = true; break;
        default: wake();
      }
    }
    for (uint32_t rank = 0; rank < case_.world; ++rank) {
      if (!done(rank)) return false;
    }
    return true;
  }

  // The same with a thread for each rank.
  void run_threads() {
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < case_.world; ++rank) {
      threads.emplace_back([this, rank] {
        Bell* const bell = &region_->control(rank).bell;
        wait_until(
            WaitPolicy::caller(static_cast<int>(case_.world)),
            [&] {
              if (done(rank)) return Attempt::kDone;
              return turn(rank, 3) == Outcome::kBlocked ? Attempt::kBlocked : Attempt::kProgressed;
            },
            [&] { return std::span<Bell* const>(&bell, 1); },
            [] { return std::chrono::microseconds(20'000); });
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // Describes the first thing that is wrong; empty if all is right.
  std::string fault() const {
    for (uint32_t rank = 0; rank < case_.world; ++rank) {
      for (uint32_t call = 0; call < calls_[rank].size(); ++call) {
        const std::string text = fault_of(rank, call);
        if (!text.empty()) {
          return "rank " + std::to_string(rank) + " call " + std::to_string(call) + ": " + text;
        }
      }
    }
    return {};
  }

  bool done(uint32_t rank) const { return next_[rank] == calls_[rank].size(); }
  Call& call(uint32_t rank, uint32_t number) { return calls_[rank][number]; }
  const Progress& corrupt() const { return corrupt_; }

 private:
  Collective collective() const { return programs_[0]->collective(); }
  // The one input that is in place lies on the one output, or on or under the rank's own of many.
  static uint32_t own(uint32_t rank, uint32_t buffers) { return buffers > 1 ? rank : 0; }
  bool in_place(uint32_t rank) const {
    const Buffers here = buffers_of(case_, collective(), rank);
    return case_.in_place && here.inputs > 0 && here.outputs > 0 &&
           collective() != Collective::kAllToAll;
  }

  void set_up(uint32_t rank, uint32_t number) {
    const Case& c = case_;
    Call& call = calls_[rank][number];
    const Buffers here = buffers_of(c, collective(), rank);
    const uint64_t element = dtype_size(c.dtype);
    std::vector<uint64_t> places;
    uint64_t end = kGuard;
    const auto place = [&](uint64_t count) {
      places.push_back(end);
      end += count * element + kGuard;
    };
    // Where there is one buffer for all, what it holds goes to or comes from this rank.
    for (uint32_t i = 0; i < here.outputs; ++i) {
      place(elements(c, collective(), here.outputs > 1 ? i : rank, rank));
    }
    for (uint32_t i = 0; i < here.inputs; ++i) {
      place(elements(c, collective(), rank, here.inputs > 1 ? i : rank));
    }
    call.memory.assign(end, kUntouched);

    OperationArguments& arguments = call.arguments;
    arguments.program = programs_[rank];
    arguments.algorithm = c.name;
    arguments.dtype = c.dtype;
    arguments.redop = c.redop;
    arguments.count = c.count;
    arguments.splits = c.uneven ? 1 : 0;
    for (uint32_t i = 0; i < here.outputs; ++i) {
      const uint64_t bytes = elements(c, collective(), here.outputs > 1 ? i : rank, rank) * element;
      arguments.outputs.push_back({call.memory.data() + places[i], bytes});
    }
    for (uint32_t i = 0; i < here.inputs; ++i) {
      const uint64_t count = elements(c, collective(), rank, here.inputs > 1 ? i : rank);
      std::byte* input = call.memory.data() + places[here.outputs + i];
      if (in_place(rank) && i == own(rank, here.inputs)) {
        input = static_cast<std::byte*>(arguments.outputs[own(rank, here.outputs)].data);
      }
      for (uint64_t k = 0; k < count; ++k) {
        store(c.dtype, input + k * element, contribution(c, number, rank, i, k));
      }
      arguments.inputs.push_back({input, count * element});
    }
    call.chunks = chunk_table(arguments, call.temporaries);
    const Program& program = *programs_[rank];
    Execution& x = call.x;
    x.program = program.view();
    x.chunks = call.chunks.data();
    x.n_chunks = program.chunks();
    x.slot_bytes = c.slot_bytes;
    x.window = c.slot_bytes * std::max(1u, c.slots / program.min_slots());
    uint64_t largest = 0;
    for (const Chunk& chunk : call.chunks) largest = std::max(largest, chunk.bytes);
    x.segments = std::max<uint64_t>(1, (largest + x.window - 1) / x.window);
    x.reducer = {reduce_kernel(c.dtype, c.redop), dtype_size(c.dtype), c.dtype, c.redop};
    x.divisor = c.redop == RedOp::kAvg ? c.world : 0;
    x.out = out_[rank].data();
    x.in = in_[rank].data();
    call.lanes.resize(program.channels());
    x.lanes = call.lanes.data();
    x.max_operands = program.max_operands();
    call.operands.resize(uint64_t{program.channels()} * x.max_operands);
    x.operands = call.operands.data();
  }

  // Gives every rank the chunk tables of all, for one-sided steps.
  void share(uint32_t number) {
    std::vector<Chunk> all;
    for (const std::vector<Call>& calls : calls_) {
      all.insert(all.end(), calls[number].chunks.begin(), calls[number].chunks.end());
    }
    for (std::vector<Call>& calls : calls_) {
      calls[number].remote = all;
      calls[number].x.remote = calls[number].remote.data();
    }
  }

  Outcome turn(uint32_t rank, uint32_t budget) {
    HostGroup group;
    const Progress progress = advance(group, calls_[rank][next_[rank]].x, budget);
    if (progress.outcome == Outcome::kDone) ++next_[rank];
    if (progress.outcome == Outcome::kBlocked || progress.outcome == Outcome::kCorrupt) {
      CHECK(progress.peer < case_.world && progress.peer != rank, "%s", case_.text().c_str());
    }
    if (progress.outcome == Outcome::kCorrupt) corrupt_ = progress;
    return progress.outcome;
  }

  std::string fault_of(uint32_t rank, uint32_t number) const {
    const Call& call = calls_[rank][number];
    const uint64_t size = dtype_size(case_.dtype);
    std::vector<bool> used(call.memory.size(), false);
    const auto check = [&](const Buffer& buffer, auto&& want) -> std::string {
      const std::byte* data = static_cast<const std::byte*>(buffer.data);
      std::fill_n(used.begin() + (data - call.memory.data()), buffer.bytes, true);
      for (uint64_t i = 0; i < buffer.bytes / size; ++i) {
        const double got = load(case_.dtype, data + i * size);
        if (got == want(i)) continue;
        return "element " + std::to_string(i) + " is " + std::to_string(got) + ", not " +
               std::to_string(want(i));
      }
      return {};
    };
    std::string text;
    for (uint32_t part = 0; part < call.arguments.outputs.size() && text.empty(); ++part) {
      text = check(call.arguments.outputs[part], [&](uint64_t i) {
        return expected(case_, reduced_, collective(), number, rank, part, i);
      });
    }
    const auto inputs = static_cast<uint32_t>(call.arguments.inputs.size());
    for (uint32_t part = 0; part < inputs && text.empty(); ++part) {
      if (in_place(rank) && part == own(rank, inputs)) continue;
      text = check(call.arguments.inputs[part],
                   [&](uint64_t i) { return contribution(case_, number, rank, part, i); });
    }
    for (size_t i = 0; i < used.size() && text.empty(); ++i) {
      if (!used[i] && call.memory[i] != kUntouched) text = "a guard was overwritten";
    }
    return text;
  }

  Case case_;
  std::vector<Expression> reduced_;
  Random random_;
  std::vector<std::shared_ptr<const Program>> programs_;
  std::shared_ptr<shm::Region> region_;
  std::vector<std::vector<LinkOut>> out_;
  std::vector<std::vector<LinkIn>> in_;
  std::vector<std::vector<Call>> calls_;  // [rank][call]
  std::vector<size_t> next_;              // call under way, of each rank
  Progress corrupt_;
};

}  // namespace simulation
