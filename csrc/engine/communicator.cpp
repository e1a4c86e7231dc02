// The queue and the stages of an operation. What errors say is in communicator_errors.cpp.
#include "engine/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "engine/engine.h"
#include "transports/shm/card.h"

namespace hybridcomm {
namespace {

// Slots that one turn may move before other groups get theirs.
constexpr uint32_t kBudget = 16;
// Beyond this the clock would overflow; the operation's own time-out comes first.
constexpr std::chrono::hours kLongestWait{24 * 365};
// While joining, progress comes from sockets, which ring no bell.
constexpr std::chrono::microseconds kJoinPoll{300};

std::atomic<void (*)()> g_interrupt_check{nullptr};

void require(bool good, const std::string& what) {
  if (!good) throw CommError(ErrorKind::kInvalid, what);
}

}  // namespace

void Communicator::set_interrupt_check(void (*check)()) { g_interrupt_check.store(check); }

Communicator::Communicator(CommunicatorOptions options, std::shared_ptr<KeyValueStore> store)
    : options_(std::move(options)),
      store_(std::move(store)),
      process_id_(getpid()),
      timeout_(options_.timeout) {
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

// ---- submitting and waiting ---------------------------------------------------------------------

std::shared_ptr<Operation> Communicator::enqueue(OperationArguments arguments) {
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
  require(process_id_ == getpid(),
          "group '" + options_.group + "' belongs to the process that made it (pid " +
              std::to_string(process_id_) + "); make a new group after fork");

  auto operation = std::make_shared<Operation>(std::move(arguments));
  operation->chunks_ = chunk_table(operation->arguments_, operation->temporaries_);
  operation->started_ = Clock::now();

  const std::lock_guard<std::mutex> lock(mutex_);
  if (left_) {
    throw CommError(ErrorKind::kAborted, std::string(operation->name()) + " on rank " +
                                             std::to_string(options_.rank) + ": group '" +
                                             options_.group + "' has been destroyed");
  }
  if (failure_) {
    ErrorInfo info = describe(*operation, failure_->kind, failure_->peer,
                              "not begun, because the group had failed: " + failure_->message);
    throw CommError(std::move(info));
  }
  operation->sequence_ = ++sequence_;
  operation->timeout_ =
      operation->arguments_.timeout.count() > 0 ? operation->arguments_.timeout : timeout_;
  operation->deadline_ = operation->started_ + operation->timeout_;
  queue_.push_back(operation);
  return operation;
}

std::shared_ptr<Operation> Communicator::submit(OperationArguments arguments) {
  std::shared_ptr<Operation> operation = enqueue(std::move(arguments));
  Engine::instance().serve(shared_from_this());
  return operation;
}

void Communicator::run(OperationArguments arguments) {
  const std::shared_ptr<Operation> operation = enqueue(std::move(arguments));
  help_until_done(operation, Clock::time_point::max());
}

void Communicator::wait(const std::shared_ptr<Operation>& operation,
                        std::chrono::milliseconds at_most) {
  const bool limited = at_most.count() > 0 && at_most < kLongestWait;
  const auto until = limited ? Clock::now() + at_most : Clock::time_point::max();
  help_until_done(operation, until);
}

void Communicator::help_until_done(const std::shared_ptr<Operation>& operation,
                                   Clock::time_point until) {
  if (!operation->done()) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++helpers_;
    }
    // Stops helping on every way out; what is still queued goes to another helper, which may sleep
    // because this thread was at it, or back to the engine's thread.
    struct Helping {
      Communicator* communicator;
      ~Helping() {
        bool others, left_over;
        {
          const std::lock_guard<std::mutex> lock(communicator->mutex_);
          others = --communicator->helpers_ > 0;
          left_over = !communicator->queue_.empty();
        }
        if (!left_over) return;
        if (others) {
          ring(communicator->local_bell_);
        } else {
          Engine::instance().wake();
        }
      }
    } helping{this};

    std::vector<Bell*> bells;
    std::shared_ptr<shm::Region> mapped;
    const auto attempt = [&] {
      if (operation->done()) return Attempt::kDone;
      const Served served = serve(false);
      if (operation->done()) return Attempt::kDone;
      return served == Served::kProgressed ? Attempt::kProgressed : Attempt::kBlocked;
    };
    const auto check = [&] {
      serve(true);
      if (void (*interrupted)() = g_interrupt_check.load()) {
        try {
          interrupted();
        } catch (...) {
          abort("interrupted by a signal");
          throw;
        }
      }
      std::chrono::microseconds slice;
      mapped = sleeping_place(bells, slice);
      if (until != Clock::time_point::max()) {
        const auto left =
            std::chrono::duration_cast<std::chrono::microseconds>(until - Clock::now());
        if (left.count() <= 0 && !operation->done()) {
          int peer = -1;
          const std::string what = look_at(*operation, peer);
          throw CommError(
              describe(*operation, ErrorKind::kTimeout, peer,
                       "not done within the time given to wait(), and goes on; it waits "
                       "for " +
                           what));
        }
        slice = std::min(slice, left);
      }
      return slice;
    };
    wait_until(
        WaitPolicy::caller(static_cast<int>(options_.shape.world)), attempt,
        [&] { return std::span<Bell* const>(bells); }, check);
  }
  if (const ErrorInfo* error = operation->error()) throw CommError(*error);
}

std::string Communicator::look_at(const Operation& operation, int& peer) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (queue_.empty() || queue_.front().get() != &operation) return "an earlier operation";
    if (serving_) return "its steps, which another thread is carrying out";
    serving_ = true;
  }
  const std::string what = waiting_for(operation, peer);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    serving_ = false;
  }
  ring(local_bell_);
  return what;
}

std::shared_ptr<shm::Region> Communicator::sleeping_place(std::vector<Bell*>& bells,
                                                          std::chrono::microseconds& slice) {
  const std::lock_guard<std::mutex> lock(mutex_);
  bells.assign(1, &local_bell_);
  if (region_ != nullptr) bells.push_back(&region_->control(options_.rank).bell);
  slice = joining_ ? kJoinPoll : std::chrono::microseconds(20'000);
  if (!queue_.empty()) {
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(
        queue_.front()->deadline_ - Clock::now());
    slice = std::clamp(left, std::chrono::microseconds(100), slice);
  }
  return region_;
}

// ---- serving ------------------------------------------------------------------------------------

Communicator::Served Communicator::serve_in_background(bool examine) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (queue_.empty()) return Served::kEmpty;
    if (helpers_ > 0) return Served::kBusy;
  }
  const Served served = serve(examine);
  // A thread that came to help meanwhile found this one at it, and may have gone to sleep.
  if (helped()) ring(local_bell_);
  return served;
}

bool Communicator::helped() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return helpers_ > 0;
}

Communicator::Served Communicator::serve(bool examine) {
  std::shared_ptr<Operation> operation;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (queue_.empty()) return Served::kEmpty;
    if (serving_) return Served::kBusy;
    serving_ = true;
    operation = queue_.front();
    examine = examine || abort_reason_.has_value();
  }
  Finished finished;
  Attempt result = Attempt::kBlocked;
  try {
    if (examine) look_for_trouble(*operation);
    result = step(*operation);
    if (result == Attempt::kDone && operation->arguments_.epilogue) {
      operation->arguments_.epilogue();
    }
  } catch (const CommError& error) {
    const ErrorInfo& info = error.info();
    // Errors of the layers below do not know the operation.
    fail(*operation,
         info.operation.empty() ? describe(*operation, info.kind, info.peer, info.message) : info,
         finished);
  } catch (const std::exception& error) {
    fail(*operation, describe(*operation, ErrorKind::kSystem, -1, error.what()), finished);
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    serving_ = false;
    if (finished.empty() && result == Attempt::kDone) {
      finished.push_back(operation);
      queue_.pop_front();
    }
  }
  if (!finished.empty()) {
    complete(finished);
    return Served::kProgressed;
  }
  return result == Attempt::kProgressed ? Served::kProgressed : Served::kBlocked;
}

void Communicator::complete(Finished& finished) {
  for (const std::shared_ptr<Operation>& operation : finished) {
    publish(operation->done_, 1u);
  }
  ring(local_bell_);
  for (const std::shared_ptr<Operation>& operation : finished) {
    if (operation->arguments_.on_complete) {
      operation->arguments_.on_complete(operation->error_.get());
      operation->arguments_.on_complete = nullptr;
    }
  }
}

Attempt Communicator::step(Operation& operation) {
  const uint32_t world = options_.shape.world;
  switch (operation.stage_) {
    case Operation::Stage::kJoin:
      if (world > 1 && !join()) return Attempt::kBlocked;
      operation.stage_ = Operation::Stage::kPublish;
      [[fallthrough]];
    case Operation::Stage::kPublish:
      if (world > 1) publish_header(operation);
      operation.stage_ = Operation::Stage::kAgree;
      [[fallthrough]];
    case Operation::Stage::kAgree:
      if (world > 1 && !agree(operation)) return Attempt::kBlocked;
      prepare(operation);
      operation.stage_ = Operation::Stage::kRun;
      [[fallthrough]];
    case Operation::Stage::kRun: break;
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
      throw CommError(describe(operation, ErrorKind::kSystem, static_cast<int>(progress.peer),
                               name(progress.peer) + " sent " + std::to_string(progress.size) +
                                   " bytes where " + std::to_string(progress.expected) +
                                   " were due"));
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

shm::OperationHeader Communicator::header_of(const Operation& operation) {
  const OperationArguments& arguments = operation.arguments_;
  shm::OperationHeader header{};
  header.sequence = operation.sequence_;
  header.count = arguments.count;
  header.root = arguments.program->root();
  header.collective = static_cast<uint16_t>(arguments.program->collective());
  header.dtype = static_cast<uint8_t>(arguments.dtype);
  header.redop = static_cast<uint8_t>(arguments.redop);
  std::memcpy(header.algorithm, arguments.algorithm.data(), arguments.algorithm.size());
  return header;
}

void Communicator::publish_header(Operation& operation) {
  set_phase(Phase::kPublish);
  shm::OperationHeader& header = region_->control(options_.rank).board[operation.sequence_ % 2];
  const shm::OperationHeader filled = header_of(operation);
  header.count = filled.count;
  header.root = filled.root;
  header.collective = filled.collective;
  header.dtype = filled.dtype;
  header.redop = filled.redop;
  std::memcpy(header.algorithm, filled.algorithm, sizeof(header.algorithm));
  publish(header.sequence, operation.sequence_);
  ring_all(*region_);
}

bool Communicator::agree(Operation& operation) {
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
      throw CommError(describe(operation, ErrorKind::kMismatch, static_cast<int>(rank),
                               explain_mismatch(options_.rank, rank)));
    }
  }
  return all;
}

void Communicator::prepare(Operation& operation) {
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
  x.reducer.op = arguments.redop;
  x.reducer.element_bytes = dtype_size(arguments.dtype);
  if (program.max_operands() > 0) {
    x.reducer.kernel = reduce_kernel(arguments.dtype, arguments.redop);
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

void Communicator::look_for_trouble(Operation& operation) {
  std::optional<std::string> aborted;
  Clock::time_point deadline = Clock::time_point::max();
  std::chrono::milliseconds timeout{0};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    aborted = abort_reason_;
    for (const auto& queued : queue_) {
      if (queued->deadline_ < deadline) {
        deadline = queued->deadline_;
        timeout = queued->timeout_;
      }
    }
  }
  if (region_ != nullptr) {
    const uint64_t word = observe(region_->header().cause.word);
    // Of an abort on this rank we know the reason: it comes next.
    const bool own = aborted && reporter_of(word) == static_cast<int>(options_.rank);
    if (word != 0 && !own) throw CommError(describe_cause(operation, word));
  }
  if (aborted) {
    throw CommError(describe(operation, ErrorKind::kAborted, static_cast<int>(options_.rank),
                             "aborted on this rank: " + *aborted));
  }
  if (joined_) {
    for (uint32_t rank = 0; rank < options_.shape.world; ++rank) {
      if (rank == options_.rank) continue;
      shm::RankControl& control = region_->control(rank);
      const bool left = observe(control.state) == static_cast<uint32_t>(shm::RankState::kLeft);
      const bool dead = !left && !processes_[rank]->alive();
      // What it completed stays valid: the slots outlive it.
      if ((!left && !dead) || observe(control.completed) >= operation.sequence_) continue;
      throw CommError(describe(operation, ErrorKind::kPeerLost, static_cast<int>(rank),
                               name(rank) + how_lost(rank) + doing(rank, operation.sequence_)));
    }
  }
  if (Clock::now() >= deadline) {
    int peer = -1;
    const std::string what = waiting_for(operation, peer);
    throw CommError(
        describe(operation, ErrorKind::kTimeout, peer,
                 "timed out after " + std::to_string(timeout.count()) + " ms waiting for " + what));
  }
}

uint64_t Communicator::latch(shm::Region& region, ErrorKind kind, int peer) {
  const uint64_t word = static_cast<uint64_t>(kind) |
                        (static_cast<uint64_t>(peer + 1) & 0xffffff) << 8 |
                        (uint64_t{options_.rank} + 1) << 32;
  uint64_t first = 0;
  if (!compare_exchange(region.header().cause.word, first, word)) return first;
  ring_all(region);
  return word;
}

void Communicator::ring_all(shm::Region& region) {
  for (uint32_t rank = 0; rank < options_.shape.world; ++rank) {
    if (rank != options_.rank) ring(region.control(rank).bell);
  }
}

void Communicator::fail(const Operation& operation, ErrorInfo info, Finished& finished) {
  // The first cause goes before what this rank found by itself: it names the rank that died, not
  // the one that gave up next.
  if (!joined_) give_up_joining(info);
  if (region_ != nullptr) {
    const uint64_t first = latch(*region_, info.kind, info.peer);
    if (reporter_of(first) != static_cast<int>(options_.rank))
      info = describe_cause(operation, first);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_) failure_ = info;
  for (const std::shared_ptr<Operation>& queued : queue_) {
    queued->error_ = std::make_unique<const ErrorInfo>(
        queued.get() == &operation
            ? info
            : describe(*queued, info.kind, info.peer,
                       "not begun, because an earlier operation failed: " + info.message));
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

void Communicator::abort(const std::string& reason) {
  // The memory of a forked child's group is its parent's.
  if (process_id_ != getpid()) return;
  std::shared_ptr<shm::Region> region;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (left_ || failure_) return;
    if (!abort_reason_) abort_reason_ = reason;
    region = region_;
  }
  if (region != nullptr) latch(*region, ErrorKind::kAborted, static_cast<int>(options_.rank));
  // Whoever waits or serves will see the reason; if nobody does, this thread carries it out.
  ring_always(local_bell_);
  if (region != nullptr) ring_always(region->control(options_.rank).bell);
  if (serve(true) == Served::kEmpty) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_) {
      ErrorInfo info;
      info.kind = ErrorKind::kAborted;
      info.group = options_.group;
      info.rank = info.peer = static_cast<int>(options_.rank);
      info.message = "group '" + options_.group + "' was aborted on rank " +
                     std::to_string(options_.rank) + ": " + reason;
      if (region == nullptr) give_up_joining(info);
      failure_ = std::move(info);
    }
  }
}

void Communicator::shutdown() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (left_) return;
    left_ = true;
  }
  // A forked child has a copy of the group but no part in it.
  const bool member = process_id_ == getpid();
  Finished finished;
  const auto attempt = [&] {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (serving_ && member) return Attempt::kBlocked;
    for (const std::shared_ptr<Operation>& queued : queue_) {
      queued->error_ = std::make_unique<const ErrorInfo>(
          describe(*queued, ErrorKind::kAborted, static_cast<int>(options_.rank),
                   "the group was destroyed on this rank before it was done"));
      finished.push_back(queued);
    }
    queue_.clear();
    return Attempt::kDone;
  };
  Bell* const bell = &local_bell_;
  wait_until(
      WaitPolicy::caller(1), attempt, [&] { return std::span<Bell* const>(&bell, 1); },
      [] { return std::chrono::microseconds(1000); });
  std::shared_ptr<shm::Region> region;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    region = std::move(region_);
    region_ = nullptr;
  }
  if (region != nullptr && member) {
    publish(region->control(options_.rank).state, static_cast<uint32_t>(shm::RankState::kLeft));
    ring_all(*region);
  }
  join_.reset();
  processes_.clear();
  complete(finished);
}

void Communicator::set_timeout(std::chrono::milliseconds timeout) {
  require(timeout.count() > 0,
          "timeout must be positive, got " + std::to_string(timeout.count()) + " ms");
  const std::lock_guard<std::mutex> lock(mutex_);
  timeout_ = timeout;
}

std::chrono::milliseconds Communicator::timeout() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return timeout_;
}

uint64_t Communicator::sequence() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return sequence_;
}

std::optional<ErrorInfo> Communicator::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

}  // namespace hybridcomm
