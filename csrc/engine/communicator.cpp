// The queue of collectives and their stages. What errors say is in communicator_errors.cpp.
#include "engine/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "transports/shm/card.h"
#include "transports/shm/cause.h"

namespace hybridcomm {
namespace {

// Slots that one turn may move before other groups get theirs.
constexpr uint32_t kBudget = 16;
// While joining, progress comes from sockets, which ring no bell.
constexpr std::chrono::microseconds kJoinPoll{300};

void require(bool good, const std::string& what) {
  if (!good) throw CommError(ErrorKind::kInvalid, what);
}

}  // namespace

Communicator::Communicator(CommunicatorOptions options, std::shared_ptr<KeyValueStore> store)
    : Service({options.group, options.rank, options.shape.world, options.global_ranks},
              options.timeout),
      options_(std::move(options)),
      store_(std::move(store)) {
  shm::validate(options_.shape);
  require(options_.rank < options_.shape.world, "rank " + std::to_string(options_.rank) +
                                                    " is not below the world size of " +
                                                    std::to_string(options_.shape.world));
}

std::shared_ptr<Communicator> Communicator::create(CommunicatorOptions options,
                                                   std::shared_ptr<KeyValueStore> store) {
  if (options.shape.world > 1) shm::Card::leave(options.rank, *store);
  return std::shared_ptr<Communicator>(new Communicator(std::move(options), std::move(store)));
}

std::shared_ptr<Communicator> Communicator::attach(CommunicatorOptions options,
                                                   shm::Membership membership) {
  std::shared_ptr<Communicator> communicator(new Communicator(std::move(options), nullptr));
  require(membership.region->shape() == communicator->options_.shape,
          "the region has another shape than the group");
  communicator->region_ = std::move(membership.region);
  communicator->processes_ = std::move(membership.processes);
  return communicator;
}

Communicator::~Communicator() { shutdown(); }

// ---- the queue ----------------------------------------------------------------------------------

Communicator::Current Communicator::enqueue(OperationArguments arguments) {
  const Program& program = *arguments.program;
  require(program.world() == options_.shape.world && program.rank() == options_.rank,
          "the program is for rank " + std::to_string(program.rank()) + " of " +
              std::to_string(program.world()) + ", this is rank " + std::to_string(options_.rank) +
              " of " + std::to_string(options_.shape.world));
  require(program.channels() <= options_.shape.channels,
          "the program uses " + std::to_string(program.channels()) + " channels, the group has " +
              std::to_string(options_.shape.channels));
  require(program.min_slots() <= options_.shape.slots,
          arguments.algorithm + " needs " + std::to_string(program.min_slots()) +
              " slots, the group's links have " + std::to_string(options_.shape.slots));
  require(!program.one_sided(),
          arguments.algorithm + " reads its peers' memory, which this group has not mapped");
  require(arguments.algorithm.size() < sizeof(shm::OperationHeader::algorithm),
          "algorithm name '" + arguments.algorithm + "' is longer than 31 bytes");
  require_own_process();

  auto operation = std::make_shared<CollectiveOperation>(std::move(arguments));
  operation->chunks_ = chunk_table(operation->arguments_, operation->temporaries_);

  const std::lock_guard<std::mutex> lock(mutex_);
  admit(*operation);
  if (operation->arguments_.then) ++sequence_;
  queue_.push_back(operation);
  return operation;
}

std::shared_ptr<Operation> Communicator::submit(OperationArguments arguments) {
  std::shared_ptr<Operation> operation = enqueue(std::move(arguments));
  hand_to_engine();
  return operation;
}

void Communicator::run(OperationArguments arguments) {
  help_until_done(enqueue(std::move(arguments)), Clock::time_point::max());
}

void Communicator::list_bells(SleepingPlace& place) const {
  if (region_ != nullptr) {
    place.bells.push_back(&region_->control(options_.rank).bell);
    place.mapped.push_back(region_);
  }
  if (joining_) place.slice = std::min(place.slice, kJoinPoll);
  if (!queue_.empty()) {
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(
        queue_.front()->deadline_ - Clock::now());
    place.slice = std::min(place.slice, left);
  }
}

std::string Communicator::waiting_for(const Operation& operation, int& peer) const {
  Current first;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!queue_.empty()) first = queue_.front();
  }
  if (first.get() != &operation) return "an earlier operation";
  return waiting_for_peers(*first, peer);
}

// ---- the stages ---------------------------------------------------------------------------------

Attempt Communicator::turn(bool examine, Finished& finished) {
  Current operation;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    operation = queue_.front();
  }
  Attempt result = Attempt::kBlocked;
  try {
    if (examine) look_for_trouble(*operation);
    result = step(*operation);
    if (result == Attempt::kDone) {
      if (operation->completion_.epilogue) operation->completion_.epilogue();
      if (continue_with_next(*operation)) return Attempt::kProgressed;
    }
  } catch (const CommError& error) {
    const ErrorInfo& info = error.info();
    // Errors of the layers below do not know the operation.
    fail(*operation,
         info.operation.empty() ? identity_.describe(*operation, info.kind, info.peer, info.message)
                                : info,
         finished);
    return Attempt::kProgressed;
  } catch (const std::exception& error) {
    fail(*operation, identity_.describe(*operation, ErrorKind::kSystem, -1, error.what()),
         finished);
    return Attempt::kProgressed;
  }
  if (result != Attempt::kDone) return result;
  settle(*operation, nullptr);
  finished.push_back(operation);
  const std::lock_guard<std::mutex> lock(mutex_);
  queue_.pop_front();
  return Attempt::kProgressed;
}

bool Communicator::continue_with_next(CollectiveOperation& operation) {
  if (!operation.arguments_.then) return false;
  OperationArguments next = operation.arguments_.then();
  operation.completion_.epilogue = std::move(next.epilogue);
  operation.arguments_ = std::move(next);
  operation.chunks_ = chunk_table(operation.arguments_, operation.temporaries_);
  ++operation.sequence_;
  operation.stage_ = CollectiveOperation::Stage::kPublish;
  return true;
}

Attempt Communicator::step(CollectiveOperation& operation) {
  const uint32_t world = options_.shape.world;
  switch (operation.stage_) {
    case CollectiveOperation::Stage::kJoin:
      if (world > 1 && !join()) return Attempt::kBlocked;
      operation.stage_ = CollectiveOperation::Stage::kPublish;
      [[fallthrough]];
    case CollectiveOperation::Stage::kPublish:
      if (world > 1) publish_header(operation);
      operation.stage_ = CollectiveOperation::Stage::kAgree;
      [[fallthrough]];
    case CollectiveOperation::Stage::kAgree:
      if (world > 1 && !agree(operation)) return Attempt::kBlocked;
      prepare(operation);
      operation.begin();
      operation.stage_ = CollectiveOperation::Stage::kRun;
      [[fallthrough]];
    case CollectiveOperation::Stage::kRun: break;
  }
  HostGroup group;
  const Progress progress = advance(group, operation.execution_, kBudget);
  switch (progress.outcome) {
    case Outcome::kProgressed: return Attempt::kProgressed;
    case Outcome::kBlocked:
      operation.blocked_ = progress;
      set_phase(Phase::kBlocked);
      return Attempt::kBlocked;
    case Outcome::kCorrupt:
      throw CommError(identity_.describe(
          operation, ErrorKind::kSystem, static_cast<int>(progress.peer),
          name(progress.peer) + " sent " + std::to_string(progress.size) + " bytes where " +
              std::to_string(progress.expected) + " were due"));
    case Outcome::kDone: break;
  }
  set_phase(Phase::kComplete);
  if (world > 1) publish(region_->control(options_.rank).completed, operation.sequence_);
  set_phase(Phase::kIdle);
  return Attempt::kDone;
}

bool Communicator::join() {
  if (joined_) return true;
  set_phase(Phase::kConnect);
  if (processes_.empty()) {
    if (join_ == nullptr) {
      join_ = shm::Join::start(options_.rank, options_.shape, store_, created_);
      const std::lock_guard<std::mutex> lock(mutex_);
      joining_ = true;
      region_ = join_->region();
    }
    const bool done = join_->advance();
    if (region_ == nullptr && join_->region() != nullptr) {
      const std::lock_guard<std::mutex> lock(mutex_);
      region_ = join_->region();
    }
    if (!done) return false;
    processes_ = join_->take().processes;
    join_.reset();
    const std::lock_guard<std::mutex> lock(mutex_);
    joining_ = false;
  }
  const uint32_t world = options_.shape.world;
  const uint32_t rank = options_.rank;
  const uint32_t links = options_.shape.channels * world;
  out_.resize(links);
  in_.resize(links);
  for (uint32_t i = 0; i < links; ++i) {
    if (i % world == rank) continue;
    out_[i] = region_->link_out(i / world, rank, i % world);
    in_[i] = region_->link_in(i / world, i % world, rank);
  }
  joined_ = true;
  return true;
}

shm::OperationHeader Communicator::header_of(const CollectiveOperation& operation) {
  const OperationArguments& arguments = operation.arguments_;
  shm::OperationHeader header{};
  header.sequence = operation.sequence_;
  // What one rank sends another is compared pair by pair.
  header.count = operation.collective() == Collective::kAllToAll ? 0 : arguments.count;
  header.splits = arguments.splits;
  header.root = arguments.program->root();
  header.collective = static_cast<uint16_t>(arguments.program->collective());
  header.dtype = static_cast<uint8_t>(arguments.dtype);
  header.redop = static_cast<uint8_t>(arguments.redop);
  std::memcpy(header.algorithm, arguments.algorithm.data(), arguments.algorithm.size());
  return header;
}

void Communicator::publish_header(CollectiveOperation& operation) {
  set_phase(Phase::kPublish);
  shm::OperationHeader& header = region_->control(options_.rank).board[operation.sequence_ % 2];
  const shm::OperationHeader filled = header_of(operation);
  header.count = filled.count;
  header.root = filled.root;
  header.collective = filled.collective;
  header.dtype = filled.dtype;
  header.redop = filled.redop;
  std::memcpy(header.algorithm, filled.algorithm, sizeof(header.algorithm));
  header.splits = filled.splits;
  if (operation.collective() == Collective::kAllToAll) {
    for (uint32_t rank = 0; rank < options_.shape.world; ++rank) {
      const uint64_t at = operation.sequence_ % 2;
      store_relaxed(region_->link(0, options_.rank, rank).promised[at],
                    operation.arguments_.inputs[rank].bytes);
      store_relaxed(region_->link(0, rank, options_.rank).expected[at],
                    operation.arguments_.outputs[rank].bytes);
    }
  }
  publish(header.sequence, operation.sequence_);
  ring_all(*region_);
}

bool Communicator::agree(CollectiveOperation& operation) {
  set_phase(Phase::kAgree);
  const shm::OperationHeader& own = region_->control(options_.rank).board[operation.sequence_ % 2];
  bool all = true;
  for (uint32_t rank = 0; rank < options_.shape.world; ++rank) {
    if (rank == options_.rank) continue;
    shm::OperationHeader& theirs = region_->control(rank).board[operation.sequence_ % 2];
    const uint64_t sequence = observe(theirs.sequence);
    if (sequence != operation.sequence_) {
      all = false;
      continue;
    }
    if (std::memcmp(&own, &theirs, sizeof(own)) != 0) {
      throw CommError(identity_.describe(operation, ErrorKind::kMismatch, static_cast<int>(rank),
                                         explain_mismatch(options_.rank, rank)));
    }
  }
  if (all && operation.collective() == Collective::kAllToAll) compare_promises(operation);
  return all;
}

void Communicator::compare_promises(const CollectiveOperation& operation) {
  for (uint32_t rank = 0; rank < options_.shape.world; ++rank) {
    const uint32_t own = options_.rank;
    if (rank == own || !(broken_promise(rank, own, operation.sequence_) ||
                         broken_promise(own, rank, operation.sequence_))) {
      continue;
    }
    throw CommError(identity_.describe(operation, ErrorKind::kMismatch, static_cast<int>(rank),
                                       explain_mismatch(rank, own)));
  }
}

bool Communicator::broken_promise(uint32_t from, uint32_t to, uint64_t sequence) const {
  const LinkControl& link = region_->link(0, from, to);
  return load_relaxed(link.promised[sequence % 2]) != load_relaxed(link.expected[sequence % 2]);
}

void Communicator::prepare(CollectiveOperation& operation) {
  const OperationArguments& arguments = operation.arguments_;
  const Program& program = *arguments.program;
  const shm::Shape& shape = options_.shape;
  Execution& x = operation.execution_;
  x.program = program.view();
  x.chunks = operation.chunks_.data();
  x.n_chunks = program.chunks();
  x.slot_bytes = shape.slot_bytes;
  x.window = shape.slot_bytes * std::max(1u, shape.slots / program.min_slots());
  uint64_t largest = 0;
  for (const Chunk& chunk : operation.chunks_) largest = std::max(largest, chunk.bytes);
  x.segments = std::max<uint64_t>(1, (largest + x.window - 1) / x.window);
  x.reducer.dtype = arguments.dtype;
  // PREMUL_SUM: the caller has multiplied already.
  x.reducer.op = arguments.redop == RedOp::kPremulSum ? RedOp::kSum : arguments.redop;
  x.reducer.element_bytes = dtype_size(arguments.dtype);
  if (program.max_operands() > 0) {
    x.reducer.kernel = reduce_kernel(arguments.dtype, x.reducer.op);
    require(x.reducer.kernel != nullptr, std::string(redop_name(arguments.redop)) + " of " +
                                             dtype_name(arguments.dtype) + " is not defined");
  }
  x.divisor = arguments.redop == RedOp::kAvg ? shape.world : 0;
  x.out = out_.data();
  x.in = in_.data();
  operation.lanes_.assign(program.channels(), Lane{});
  x.lanes = operation.lanes_.data();
  x.max_operands = program.max_operands();
  operation.operands_.resize(uint64_t{program.channels()} * x.max_operands);
  x.operands = operation.operands_.data();
  x.phase = options_.phase != nullptr ? options_.phase
            : region_ != nullptr      ? &region_->control(options_.rank).phase
                                      : &no_phase_;
}

void Communicator::set_phase(Phase phase) {
  uint32_t* word = options_.phase;
  if (word == nullptr) {
    word = region_ != nullptr ? &region_->control(options_.rank).phase : &no_phase_;
  }
  store_relaxed(*word, static_cast<uint32_t>(phase));
}

// ---- failing and ending -------------------------------------------------------------------------

void Communicator::look_for_trouble(CollectiveOperation& operation) {
  const std::optional<ErrorInfo> outside = outside_cause(operation);
  if (region_ != nullptr) {
    const uint64_t word = observe(region_->header().cause.word);
    // Of what was found on this rank we know more: it comes next.
    const bool own = outside && shm::read_cause(word).reporter == static_cast<int>(options_.rank);
    if (word != 0 && !own) throw CommError(describe_cause(operation, word));
  }
  if (outside) throw CommError(*outside);
  if (joined_) {
    for (uint32_t rank = 0; rank < options_.shape.world; ++rank) {
      if (rank == options_.rank) continue;
      shm::RankControl& control = region_->control(rank);
      const bool left = observe(control.state) == static_cast<uint32_t>(shm::RankState::kLeft);
      const bool dead = !left && !processes_[rank]->alive();
      // What it completed stays valid: the slots outlive it.
      if ((!left && !dead) || observe(control.completed) >= operation.sequence_) continue;
      throw CommError(
          identity_.describe(operation, ErrorKind::kPeerLost, static_cast<int>(rank),
                             name(rank) + how_lost(rank) + doing(rank, operation.sequence_)));
    }
  }
  Clock::time_point deadline = Clock::time_point::max();
  std::chrono::milliseconds timeout{0};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Current& queued : queue_) {
      if (queued->deadline_ < deadline) {
        deadline = queued->deadline_;
        timeout = queued->timeout_;
      }
    }
  }
  if (Clock::now() >= deadline) {
    int peer = -1;
    const std::string what = waiting_for_peers(operation, peer);
    throw CommError(identity_.describe(
        operation, ErrorKind::kTimeout, peer,
        "Timed out after " + std::to_string(timeout.count()) + " ms waiting for " + what));
  }
}

void Communicator::tell_peers(ErrorKind kind, int peer) {
  std::shared_ptr<shm::Region> region;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    region = region_;
  }
  if (region == nullptr) return;
  shm::latch_cause(region->header().cause, kind, peer, options_.rank);
  ring_all(*region);
}

void Communicator::failed_idle(const ErrorInfo& info) {
  bool unknown;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    unknown = region_ == nullptr;
  }
  if (unknown) give_up_joining(info);
}

void Communicator::ring_all(shm::Region& region) {
  for (uint32_t rank = 0; rank < options_.shape.world; ++rank) {
    if (rank != options_.rank) ring(region.control(rank).bell);
  }
}

void Communicator::fail(const CollectiveOperation& operation, ErrorInfo info, Finished& finished) {
  // The first cause goes before what this rank found by itself: it names the rank that died, not
  // the one that gave up next.
  if (!joined_) give_up_joining(info);
  if (region_ != nullptr) {
    const uint64_t first =
        shm::latch_cause(region_->header().cause, info.kind, info.peer, options_.rank);
    ring_all(*region_);
    if (shm::read_cause(first).reporter != static_cast<int>(options_.rank)) {
      info = describe_cause(operation, first);
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  note_failure(info);
  for (const Current& queued : queue_) {
    settle(*queued,
           std::make_unique<const ErrorInfo>(
               queued.get() == &operation
                   ? info
                   : identity_.describe(
                         *queued, info.kind, info.peer,
                         "not begun, because an earlier operation failed: " + info.message)));
    finished.push_back(queued);
  }
  queue_.clear();
}

void Communicator::give_up_joining(const ErrorInfo& info) {
  if (options_.rank != 0 || store_ == nullptr || options_.shape.world == 1) return;
  try {
    shm::Join::give_up(*store_, info);
  } catch (const std::exception&) {
    // The store is gone as well: what went wrong first is what the caller must hear.
  }
}

void Communicator::abandon(Finished& finished) {
  for (const Current& queued : queue_) {
    settle(*queued, std::make_unique<const ErrorInfo>(identity_.describe(
                        *queued, ErrorKind::kAborted, static_cast<int>(options_.rank),
                        "the group was destroyed on this rank before it was done")));
    finished.push_back(queued);
  }
  queue_.clear();
}

void Communicator::shutdown() {
  Finished finished;
  if (!leave(finished)) return;
  std::shared_ptr<shm::Region> region;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    region = std::move(region_);
    region_ = nullptr;
  }
  // A forked child has a copy of the group but no part in it.
  if (region != nullptr && process_id_ == getpid()) {
    publish(region->control(options_.rank).state, static_cast<uint32_t>(shm::RankState::kLeft));
    ring_all(*region);
  }
  join_.reset();
  processes_.clear();
  complete(finished);
}

}  // namespace hybridcomm
