// The executor: all ranks of a program in one thread, in an order that a seeded scheduler chooses,
// over real links with tiny slots; then with a thread for each rank, for ThreadSanitizer.
#include <algorithm>
#include <array>
#include <functional>

#include "check.h"
#include "programs.h"
#include "simulation.h"

namespace {

using namespace hybridcomm;
using namespace simulation;

const char* const kReduces[] = {"all_reduce.ring",
                                "all_reduce.two_shot",
                                "all_reduce.one_shot",
                                "all_reduce.double_binary_tree",
                                "all_reduce.halving_doubling",
                                "all_reduce.two_shot_mapped",
                                "reduce_scatter.direct",
                                "reduce_scatter.ring",
                                "reduce_scatter.recursive_halving",
                                "reduce.direct",
                                "reduce.binomial"};
const char* const kMoves[] = {"broadcast.binomial",   "broadcast.direct",    "broadcast.chain",
                              "all_gather.ring",      "all_gather.direct",   "all_gather.bruck",
                              "all_to_all.direct",    "all_to_all.pairwise", "gather.direct",
                              "gather.binomial",      "scatter.direct",      "scatter.binomial",
                              "barrier.dissemination"};
// Those whose parts may differ in length.
const char* const kUneven[] = {"all_gather.ring",     "all_gather.direct",
                               "all_gather.bruck",    "all_to_all.direct",
                               "all_to_all.pairwise", "gather.direct",
                               "scatter.direct",      "reduce_scatter.direct",
                               "reduce_scatter.ring", "reduce_scatter.recursive_halving"};

void finds_planted_faults() {
  Case c;
  c.name = "all_reduce.two_shot";
  c.world = 3;
  c.count = 1000;
  {
    Simulation good(c, 2);
    CHECK(good.run() && good.fault().empty(), "%s", good.fault().c_str());
    std::byte& last = *(static_cast<std::byte*>(good.call(2, 1).arguments.outputs[0].data) + 3998);
    last ^= std::byte{1};
    CHECK(!good.fault().empty(), "one wrong bit was not seen");
  }
  {
    Simulation guarded(c, 1);
    guarded.call(1, 0).memory.back() = std::byte{0};
    CHECK(guarded.run() && guarded.fault().find("guard") != std::string::npos);
  }
  {
    Simulation held(c, 1);
    CHECK(!held.run(1), "a rank that gets no turn was not missed");
  }
  {
    Simulation wrong(c, 1);
    Execution& x = wrong.call(2, 0).x;
    x.reducer.kernel = reduce_kernel(c.dtype, RedOp::kMax);
    CHECK(wrong.run() && !wrong.fault().empty(), "another operation was not seen");
  }
  {
    // The rounding of a ring differs from that of two shots: the oracle must tell them apart.
    c.dtype = DType::kBFloat16;
    c.world = 4;
    std::vector<std::shared_ptr<const Program>> ring;
    for (uint32_t rank = 0; rank < 4; ++rank) {
      ring.push_back(programs::load("all_reduce.ring", 4, rank));
    }
    Simulation other(c, 1, ring);
    CHECK(other.run() && !other.fault().empty(), "rounding was not looked at");
  }
}

void check(const Case& c) {
  Simulation simulation(c, 2);
  CHECK(simulation.run(), "%s: does not end", c.text().c_str());
  const std::string fault = simulation.fault();
  CHECK(fault.empty(), "%s: %s", c.text().c_str(), fault.c_str());
}

// Counts that give pieces of a slot and a little less or more, none at all, or many segments.
std::vector<uint64_t> counts(const Case& c) {
  const uint64_t slot = c.slot_bytes / dtype_size(c.dtype);
  const uint64_t whole = slot * c.channels * c.world;
  return {0, 1, 7, 101, slot - 1, slot + 1, whole - 1, whole, whole + 1, 9 * whole + 13};
}

void every_program_at_every_size() {
  Random random(11);
  const auto draw = [&](auto... choices) {
    const std::array values{choices...};
    return values[random() % values.size()];
  };
  const auto sweep = [&](const char* name, bool reduces) {
    for (uint32_t world = 1; world <= 8; ++world) {
      for (uint32_t channels = 1; channels <= 2; ++channels) {
        for (size_t size = 0; size < 10; ++size) {
          Case c;
          c.name = name;
          c.world = world;
          c.channels = channels;
          c.slots = draw(2u, 3u, 4u);
          c.slot_bytes = draw(64u, 128u, 192u, 256u);
          c.dtype = draw(DType::kBFloat16, DType::kFloat32, DType::kInt32);
          c.redop = reduces ? draw(RedOp::kSum, RedOp::kSum, RedOp::kAvg, RedOp::kMax) : c.redop;
          if (!reduces) c.dtype = draw(DType::kUInt8, DType::kBFloat16, DType::kFloat32);
          c.in_place = random() % 2 == 0;
          c.budget = draw(0u, 1u, 1000u);
          c.seed = random() % 1000;
          c.count = counts(c)[size];
          check(c);
        }
      }
    }
  };
  for (const char* name : kReduces) sweep(name, true);
  for (const char* name : kMoves) sweep(name, false);
}

void parts_that_differ_in_length() {
  Random random(12);
  for (const char* name : kUneven) {
    for (uint32_t world = 1; world <= 8; ++world) {
      for (const uint64_t count : {0, 1, 50, 777}) {
        Case c;
        c.name = name;
        c.world = world;
        c.channels = 1 + static_cast<uint32_t>(random() % 2);
        c.slots = 2 + static_cast<uint32_t>(random() % 2);
        c.in_place = random() % 2 == 0;
        c.uneven = true;
        c.seed = random() % 1000;
        c.count = count;
        check(c);
      }
    }
  }
}

void refuses(const char* what, Case c, uint32_t rank,
             const std::function<void(OperationArguments&)>& change = {}) {
  std::string why;
  try {
    Simulation simulation(c, 1);
    OperationArguments& arguments = simulation.call(rank, 0).arguments;
    if (change) change(arguments);
    std::unique_ptr<std::byte[]> temporaries;
    chunk_table(arguments, temporaries);
  } catch (const CommError& error) {
    why = error.what();
  }
  CHECK(why.find(what) != std::string::npos, "expected '%s', got '%s'", what, why.c_str());
}

// A call's buffers must fit the program, whatever the other ranks bring.
void refuses_buffers_that_do_not_fit() {
  Case c;
  c.world = 4;
  c.count = 8;
  c.name = "gather.direct";
  const auto more = [](auto& a) { a.outputs.push_back(a.inputs[0]); };
  const auto longer = [](auto& a) { a.inputs[0].bytes = 64; };
  refuses("1 output buffers, needs 0", c, 1, more);
  refuses("5 output buffers, needs 4", c, 2, more);
  refuses("input buffer of 64 bytes, output buffer of 32", c, 2, longer);
  refuses("no whole number of elements", c, 1, [](auto& a) { a.inputs[0].bytes = 31; });
  refuses("buffers of 32 bytes, needs 36", c, 2, [](auto& a) { a.count = 9; });
  c.name = "reduce.direct";
  refuses("input buffer of 64 bytes, needs 32", c, 1, longer);
  c.name = "reduce_scatter.ring";
  refuses("input buffer of 32 bytes, output buffer of 64", c, 1,
          [](auto& a) { a.outputs[0].bytes = 64; });
  // Whoever passes on must know how long everything is.
  c.name = "gather.binomial";
  refuses("must all be equally long", c, 1, longer);
  c.uneven = true;
  refuses("must all be equally long", c, 2);
}

// How much one turn may do, and who gets the turns, changes no bit.
void results_do_not_depend_on_the_order() {
  for (const char* name : kReduces) {
    Case c;
    c.name = name;
    c.world = 5;
    c.slots = 4;
    c.dtype = DType::kBFloat16;
    c.redop = RedOp::kAvg;
    c.count = 3001;
    // The data depend on the seed, so the orders differ by the turns' sizes.
    for (const uint32_t budget : {1u, 2u, 7u, 0u, 1u << 30}) {
      c.budget = budget;
      check(c);
    }
  }
}

// Nobody leaves a barrier before everybody has come to it.
void a_barrier_holds() {
  for (uint32_t world = 2; world <= 8; ++world) {
    for (uint32_t held = 0; held < world; ++held) {
      Case c;
      c.name = "barrier.dissemination";
      c.world = world;
      c.seed = held;
      Simulation simulation(c, 1);
      simulation.run(held);
      for (uint32_t rank = 0; rank < world; ++rank) {
        CHECK(!simulation.done(rank), "world %u: rank %u passed without rank %u", world, rank,
              held);
      }
    }
  }
}

// A peer that sends another size than the program says is named, and its bytes are not touched.
void a_wrong_size_is_corrupt() {
  Case c;
  c.name = "broadcast.direct";
  c.count = 64;
  c.in_place = false;
  Simulation simulation(c, 1);
  Call& sender = simulation.call(1, 0);
  for (Chunk& chunk : sender.chunks) chunk.bytes = 40;
  CHECK(!simulation.run());
  const Progress& progress = simulation.corrupt();
  CHECK(progress.outcome == Outcome::kCorrupt && progress.receiving && progress.peer == 1 &&
            progress.size == 40 && progress.expected == 64,
        "size %zu expected %zu", size_t{progress.size}, size_t{progress.expected});
  const auto* output =
      static_cast<const std::byte*>(simulation.call(0, 0).arguments.outputs[0].data);
  CHECK(std::all_of(output, output + 256, [](std::byte b) { return b == kUntouched; }));
}

// All-gather by one-sided writes: each rank writes its input into every peer's output, then tells
// them. Written here, because no algorithm uses `write` without a reduction yet.
std::vector<std::shared_ptr<const Program>> gather_by_writing(uint32_t world) {
  std::vector<std::shared_ptr<const Program>> programs;
  for (uint32_t rank = 0; rank < world; ++rank) {
    programs::Writer writer;
    writer.collective = Collective::kAllGather;
    writer.world = world;
    writer.rank = rank;
    writer.inputs = 1;
    writer.outputs = world;
    writer.step(StepOp::kCopy, {}, {}, 0, 1 + rank);
    // One token says that the peer's output may be written, one that it has been.
    for (const bool before : {true, false}) {
      for (uint32_t peer = 0; peer < world; ++peer) {
        if (peer != rank && !before) {
          writer.step(StepOp::kWrite, {}, {peer}, 0, kNoChunk, 1 + rank);
        }
        if (peer != rank) writer.signal({peer});
      }
      for (uint32_t peer = 0; peer < world; ++peer) {
        if (peer != rank) writer.wait({peer});
      }
    }
    programs.push_back(writer.parse());
  }
  return programs;
}

void one_sided_steps() {
  for (uint32_t world = 2; world <= 5; ++world) {
    for (const uint64_t count : {0, 1, 7, 31, 32, 33, 1000}) {
      Case c;
      c.name = "all_gather.written";
      c.world = world;
      c.count = count;
      c.in_place = count % 2 == 0;
      c.seed = world * 100 + count;
      Simulation simulation(c, 2, gather_by_writing(world));
      CHECK(simulation.run(), "%s", c.text().c_str());
      const std::string fault = simulation.fault();
      CHECK(fault.empty(), "%s: %s", c.text().c_str(), fault.c_str());
    }
  }
}

void threads() {
  const auto go = [](const Case& c, std::vector<std::shared_ptr<const Program>> programs) {
    Simulation simulation(c, 3, std::move(programs));
    simulation.run_threads();
    const std::string fault = simulation.fault();
    CHECK(fault.empty(), "threads, %s: %s", c.text().c_str(), fault.c_str());
  };
  for (uint32_t world = 2; world <= 4; ++world) {
    Case c;
    c.world = world;
    c.count = 2000;
    c.slots = 2;
    c.name = "all_gather.written";
    go(c, gather_by_writing(world));
    for (const char* name : kReduces) {
      c.name = name;
      go(c, {});
    }
    for (const char* name : kMoves) {
      c.name = name;
      go(c, {});
    }
  }
}

}  // namespace

int main() {
  finds_planted_faults();
  every_program_at_every_size();
  parts_that_differ_in_length();
  refuses_buffers_that_do_not_fit();
  results_do_not_depend_on_the_order();
  a_barrier_holds();
  a_wrong_size_is_corrupt();
  one_sided_steps();
  threads();
  return check_status();
}
