// A group's beginning and end, and what becomes of it in between: split, merged, shrunk.
#include "torch/process_group.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "base/reduce.h"
#include "torch/errors.h"
#include "torch/exit.h"
#include "torch/interpreter.h"
#include "torch/recording.h"
#include "torch/store.h"

namespace hybridcomm {
namespace {

std::shared_ptr<Communicator> make_communicator(c10::intrusive_ptr<c10d::Store> store, int rank,
                                                int size,
                                                const ProcessGroupHybridcomm::Options& options) {
  return translating([&] {
    if (const char* why = reduce_isa_error()) throw CommError(ErrorKind::kInvalid, why);
    CommunicatorOptions core;
    core.group = options.group_name;
    core.rank = static_cast<uint32_t>(rank);
    core.shape = choose_shape(static_cast<uint32_t>(size), options.preferences);
    core.timeout = std::min(options.timeout, kLongestTimeout);
    core.global_ranks = options.global_ranks_in_group;
    if (core.timeout.count() <= 0) {
      throw CommError(ErrorKind::kInvalid, "timeout must be positive, is " +
                                               std::to_string(core.timeout.count()) + " ms");
    }
    return Communicator::create(std::move(core), std::make_shared<TorchStore>(std::move(store)));
  });
}

std::shared_ptr<Messenger> make_messenger(c10::intrusive_ptr<c10d::Store> store,
                                          const CommunicatorOptions& group,
                                          const Preferences& preferences) {
  return translating([&] {
    const shm::Shape pair = choose_shape(2, preferences);
    MessengerOptions core;
    core.group = group.group;
    core.rank = group.rank;
    core.world = group.shape.world;
    core.slots = pair.slots;
    core.slot_bytes = pair.slot_bytes;
    core.timeout = group.timeout;
    core.global_ranks = group.global_ranks;
    return Messenger::create(std::move(core), std::make_shared<TorchStore>(std::move(store)));
  });
}

// A group fails as a whole: what one of its services finds ends the other one too.
void fail_together(const std::shared_ptr<Communicator>& collectives,
                   const std::shared_ptr<Messenger>& messages) {
  const auto ends = [](std::weak_ptr<Service> other) {
    return [other = std::move(other)](const ErrorInfo& cause) {
      if (const std::shared_ptr<Service> service = other.lock()) service->fail_with(cause);
    };
  };
  collectives->set_failure_hook(ends(messages));
  messages->set_failure_hook(ends(collectives));
}

}  // namespace

ProcessGroupHybridcomm::ProcessGroupHybridcomm(c10::intrusive_ptr<c10d::Store> store, int rank,
                                               int size, c10::intrusive_ptr<Options> options)
    : Backend(rank, size),
      communicator_(make_communicator(store, rank, size, *options)),
      options_(std::move(options)),
      store_(std::move(store)),
      messenger_(make_messenger(store_, communicator_->options(), options_->preferences)),
      group_(communicator_->options().group),
      process_id_(getpid()),
      records_frames_(frames_wanted()) {
  // Reads its settings, which may be wrong.
  translating([] { FlightRecorder::instance(); });
  fail_together(communicator_, messenger_);
  leave_at_exit(communicator_);
  leave_at_exit(messenger_);
  init();
}

ProcessGroupHybridcomm::~ProcessGroupHybridcomm() {
  if (process_id_ != getpid()) {
    // In a forked child: the group is the parent's, and a thread of the parent may have held its
    // lock when the child was made.
    new std::shared_ptr<Communicator>(std::move(communicator_));
    new std::shared_ptr<Messenger>(std::move(messenger_));
    return;
  }
  // Work that is still referenced keeps the communicator, so it does not end by itself.
  shutdown();
  if (recorded_as_) FlightRecorder::instance().remove_group(*recorded_as_);
}

// ---- the group ----------------------------------------------------------------------------------

void ProcessGroupHybridcomm::setTimeout(std::chrono::milliseconds timeout) {
  translating([&] {
    communicator_->set_timeout(std::min(timeout, kLongestTimeout));
    messenger_->set_timeout(std::min(timeout, kLongestTimeout));
  });
  options_->timeout = timeout;
}

c10d::ErrorType ProcessGroupHybridcomm::getError() {
  std::optional<ErrorInfo> failure = communicator_->failure();
  if (!failure) failure = messenger_->failure();
  if (!failure) return c10d::ErrorType::SUCCESS;
  switch (failure->kind) {
    case ErrorKind::kTimeout: return c10d::ErrorType::TIMEOUT;
    case ErrorKind::kPeerLost: return c10d::ErrorType::REMOTE_ERROR;
    default: return c10d::ErrorType::COMM_ERROR;
  }
}

void ProcessGroupHybridcomm::abort() {
  const ReleaseGil released;
  communicator_->abort("abort() was called");
  messenger_->abort("abort() was called");
}

void ProcessGroupHybridcomm::shutdown() {
  const ReleaseGil released;
  communicator_->shutdown();
  messenger_->shutdown();
}

// ---- other groups -------------------------------------------------------------------------------

c10::intrusive_ptr<c10d::Backend> ProcessGroupHybridcomm::regrouped(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    const c10::intrusive_ptr<c10d::Backend::Options>& options, std::vector<uint64_t> global_ranks) {
  auto own = c10::make_intrusive<Options>(*options_);
  own->group_name += "/" + std::to_string(size);
  if (options != nullptr) {
    own->timeout = options->timeout;
    if (!options->group_name.empty()) own->group_name = options->group_name;
    if (const auto* ours = dynamic_cast<const Options*>(options.get())) {
      own->preferences = ours->preferences;
    }
  }
  // torch asks once for each type of device, and drops all answers but the first [torch 2.13]. The
  // end of the second would be read in the store as that of the first.
  const c10::intrusive_ptr<c10d::Backend> last = regrouped_.lock();
  if (const auto* ours = static_cast<const ProcessGroupHybridcomm*>(last.get());
      ours != nullptr && ours->store_ == store && ours->group_ == own->group_name) {
    return last;
  }
  own->global_ranks_in_group = std::move(global_ranks);
  c10::intrusive_ptr<c10d::Backend> made =
      c10::make_intrusive<ProcessGroupHybridcomm>(store, rank, size, std::move(own));
  regrouped_ = c10::weak_intrusive_ptr<c10d::Backend>(made);
  return made;
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupHybridcomm::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  const CallSite site("split", rank_, group_);
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  // A rank that is in no part has no group.
  if (own == ranks.end()) return nullptr;
  std::vector<uint64_t> global;
  for (const int rank : ranks) {
    if (rank < 0 || rank >= size_) {
      site.refuse("ranks", std::to_string(rank) + " is not in the group, which has ranks 0 to " +
                               std::to_string(size_ - 1));
    }
    if (std::count(ranks.begin(), ranks.end(), rank) > 1) {
      site.refuse("ranks", std::to_string(rank) + " is named twice");
    }
    global.push_back(global_rank(rank));
  }
  return regrouped(store, static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()),
                   options, std::move(global));
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupHybridcomm::merge(
    const c10::intrusive_ptr<c10d::Store>& store,
    const c10::intrusive_ptr<c10d::Backend::Options>& options, const int& rank, const int& size) {
  if (rank < 0 || rank >= size) {
    CallSite("merge", rank_, group_)
        .refuse("rank", std::to_string(rank) + " is not below the size, " + std::to_string(size));
  }
  // Where the other groups' ranks stand in the job is not known here.
  return regrouped(store, rank, size, options, {});
}

// Works on a group that has failed, and without the ranks that are left out: those may be dead. So
// nothing is agreed upon by talking; all ranks that stay must name the same ones.
c10::intrusive_ptr<c10d::Backend> ProcessGroupHybridcomm::shrink(
    const std::vector<int64_t>& excluded, int flags,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  const CallSite site("shrink", rank_, group_);
  std::vector<uint64_t> global;
  std::string left_out;
  int own = -1;
  for (const int64_t rank : excluded) {
    if (rank < 0 || rank >= size_) {
      site.refuse("ranks_to_exclude", std::to_string(rank) +
                                          " is not in the group, which has ranks 0 to " +
                                          std::to_string(size_ - 1));
    }
    if (rank == rank_) site.refuse("ranks_to_exclude", "it names the rank that calls");
  }
  for (int rank = 0; rank < size_; ++rank) {
    if (std::find(excluded.begin(), excluded.end(), rank) != excluded.end()) {
      left_out += "-" + std::to_string(rank);
      continue;
    }
    if (rank == rank_) own = static_cast<int>(global.size());
    global.push_back(global_rank(rank));
  }
  // SHRINK_ABORT: what is under way ends first.
  if ((flags & 1) != 0) abort();
  const auto size = static_cast<int>(global.size());
  // The new ranks meet in a corner of this group's store that earlier ones have not used.
  const auto corner = c10::make_intrusive<c10d::PrefixStore>(
      "hybridcomm/shrunk" + std::to_string(++shrunk_) + left_out, store_);
  return regrouped(corner, own, size, options, std::move(global));
}

uint64_t ProcessGroupHybridcomm::global_rank(int rank) const {
  const std::vector<uint64_t>& known = options_->global_ranks_in_group;
  const auto index = static_cast<size_t>(rank);
  return index < known.size() ? known[index] : static_cast<uint64_t>(rank);
}

}  // namespace hybridcomm
