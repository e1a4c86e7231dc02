// Queues, matching and slots. What ends messages early is in messenger_errors.cpp.
#include "engine/messenger.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "engine/messenger_pair.h"

namespace hybridcomm {
namespace {

// Slots that one turn may move before other groups get theirs, and one pair before other pairs.
constexpr uint32_t kBudget = 16;
constexpr uint32_t kPairBudget = 4;
// Joins that one turn may advance: each asks the store.
constexpr uint32_t kJoinsAtOnce = 4;
// While joining, progress comes from sockets and the store, which ring no bell. Whoever waits long
// looks less often: a receive from any rank may have many joins open that nobody answers.
constexpr std::chrono::microseconds kJoinPoll{300};
constexpr std::chrono::microseconds kLongJoinPoll{2000};
// With more pairs than bells, the others must be looked at often enough.
constexpr std::chrono::microseconds kWithoutBell{500};

shm::Shape shape_of(const MessengerOptions& options) {
  return {2, 1, options.slots, options.slot_bytes};
}

Bell& own_bell(shm::Region& region, uint32_t rank, uint32_t peer) {
  return region.control(rank < peer ? 0 : 1).bell;
}

}  // namespace

std::string Message::contents() const {
  std::string text = size_text(bytes()) + " of " + dtype_name(arguments_.dtype);
  return text + ", tag " + std::to_string(arguments_.tag);
}

Messenger::Messenger(MessengerOptions options, std::shared_ptr<KeyValueStore> store)
    : Service({options.group, options.rank, options.world, options.global_ranks}, options.timeout),
      options_(std::move(options)),
      store_(std::move(store)),
      naming_(options_.world, 0),
      regions_(options_.world),
      pairs_(options_.world) {
  shm::validate(shape_of(options_));
  if (options_.world > shm::kMaxWorld || options_.rank >= options_.world) {
    throw CommError(ErrorKind::kInvalid, "rank " + std::to_string(options_.rank) +
                                             " is not below a world size of " +
                                             std::to_string(options_.world) + ", at most " +
                                             std::to_string(shm::kMaxWorld));
  }
}

std::shared_ptr<Messenger> Messenger::create(MessengerOptions options,
                                             std::shared_ptr<KeyValueStore> store) {
  std::shared_ptr<Messenger> messenger(new Messenger(std::move(options), std::move(store)));
  // An earlier group may have been in that place of the store.
  if (messenger->options_.world > 1) messenger->set_state("");
  return messenger;
}

std::shared_ptr<Messenger> Messenger::attach(MessengerOptions options,
                                             std::vector<shm::Membership> pairs) {
  std::shared_ptr<Messenger> messenger(new Messenger(std::move(options), nullptr));
  for (uint32_t peer = 0; peer < messenger->options_.world; ++peer) {
    if (peer == messenger->options_.rank) continue;
    messenger->regions_[peer] = pairs[peer].region;
    messenger->pair_with(peer).adopt(std::move(pairs[peer]));
  }
  return messenger;
}

Messenger::~Messenger() { shutdown(); }

// ---- submitting ---------------------------------------------------------------------------------

void Messenger::check(const Message& message) const {
  const MessageArguments& arguments = message.arguments();
  const auto require = [&](bool good, const std::string& why) {
    if (good) return;
    throw CommError(identity_.describe(message, ErrorKind::kInvalid, arguments.peer, why));
  };
  const std::string number = std::to_string(arguments.peer);
  const int world = static_cast<int>(options_.world);
  require(arguments.peer != static_cast<int>(options_.rank),
          "a rank cannot exchange messages with itself, and " + number + " is this rank");
  require(arguments.peer < world && arguments.peer >= (message.receives() ? -1 : 0),
          "there is no rank " + number + " in a world size of " + std::to_string(world));
  require(world > 1, "there is no other rank to receive from");
  const Buffer& buffer = arguments.buffer;
  const uint64_t element = dtype_size(arguments.dtype);
  require(element > 0 && arguments.count <= UINT64_MAX / element &&
              buffer.bytes == arguments.count * element &&
              (buffer.data != nullptr || buffer.bytes == 0),
          "the buffer does not hold " + std::to_string(arguments.count) + " elements");
}

Messenger::Current Messenger::enqueue(MessageArguments arguments) {
  auto message = std::make_shared<Message>(std::move(arguments));
  check(*message);
  require_own_process();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    admit(*message);
    pending_.emplace(message->sequence_, message);
    posted_.push_back(message);
    const int peer = message->arguments_.peer;
    ++(peer < 0 ? from_any_ : naming_[static_cast<uint32_t>(peer)]);
  }
  // A thread that helps already sleeps on the bells of the pairs that it knew of.
  ring(local_bell_);
  return message;
}

std::shared_ptr<Message> Messenger::submit(MessageArguments arguments) {
  Current message = enqueue(std::move(arguments));
  // Most messages fit the slots, or are there already: then no thread need be woken.
  serve(false);
  if (!message->done()) hand_to_engine();
  return message;
}

std::shared_ptr<Message> Messenger::run(MessageArguments arguments) {
  Current message = enqueue(std::move(arguments));
  help_until_done(message, Clock::time_point::max());
  return message;
}

Messenger::Mapped Messenger::mapped() const {
  Mapped mapped;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& region : regions_) {
    if (region == nullptr) continue;
    ++mapped.pairs;
    mapped.bytes += shm::region_bytes(region->shape());
  }
  return mapped;
}

void Messenger::list_bells(SleepingPlace& place) const {
  for (uint32_t peer = 0; peer < options_.world; ++peer) {
    if (regions_[peer] == nullptr || (naming_[peer] == 0 && from_any_ == 0)) continue;
    if (place.bells.size() == kMaxBells) {
      place.slice = std::min(place.slice, kWithoutBell);
      break;
    }
    place.bells.push_back(&own_bell(*regions_[peer], options_.rank, peer));
    place.mapped.push_back(regions_[peer]);
  }
  if (join_poll_.count() > 0) place.slice = std::min(place.slice, join_poll_);
  const Clock::time_point now = Clock::now();
  for (const auto& [sequence, message] : pending_) {
    const auto left =
        std::chrono::duration_cast<std::chrono::microseconds>(message->deadline_ - now);
    place.slice = std::min(place.slice, left);
  }
}

std::string Messenger::waiting_for(const Operation& operation, int& peer) const {
  // With the lock, because a thread that looks may come as late as shutdown().
  const std::lock_guard<std::mutex> lock(mutex_);
  if (left_) return "the group, which was destroyed";
  return waiting_for_peer(static_cast<const Message&>(operation), peer);
}

// ---- one turn -----------------------------------------------------------------------------------

Attempt Messenger::turn(bool examine, Finished& finished) {
  bool progressed = false;
  try {
    // What was just posted counts as progress even if it is blocked at once: a thread about to
    // sleep must list the bells anew.
    progressed = take_posted(finished);
    progressed |= move_slots(finished);
    if (examine) look_for_trouble(finished);
    if (!progressed) progressed = join_some();
  } catch (Trouble& trouble) {
    fail(std::move(trouble), finished);
  } catch (const CommError& error) {
    fail({error.info().kind, error.info().peer, error.what()}, finished);
  } catch (const std::exception& error) {
    fail({ErrorKind::kSystem, -1, error.what()}, finished);
  }
  return progressed || !finished.empty() ? Attempt::kProgressed : Attempt::kBlocked;
}

bool Messenger::take_posted(Finished& finished) {
  std::vector<Current> posted;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    posted.swap(posted_);
  }
  // What was just posted may need other joins.
  if (!posted.empty()) next_join_ = {};
  for (const Current& message : posted) {
    const int peer = message->arguments_.peer;
    if (message->receives()) {
      post_receive(message, finished);
    } else {
      pair_with(static_cast<uint32_t>(peer)).sends.push_back(message);
    }
  }
  return !posted.empty();
}

Pair& Messenger::pair_with(uint32_t peer) {
  std::unique_ptr<Pair>& pair = pairs_[peer];
  if (pair == nullptr) {
    pair = std::make_unique<Pair>(identity_, peer, shape_of(options_), store_, created_);
    open_.push_back(pair.get());
  }
  return *pair;
}

Pair* Messenger::find_pair(int peer) const {
  const bool valid = peer >= 0 && static_cast<size_t>(peer) < pairs_.size();
  return valid ? pairs_[static_cast<size_t>(peer)].get() : nullptr;
}

// ---- matching -----------------------------------------------------------------------------------

void Messenger::post_receive(const Current& receive, Finished& finished) {
  const int peer = receive->arguments_.peer;
  const int32_t tag = receive->arguments_.tag;
  Pair* from = nullptr;
  Incoming* first = nullptr;
  if (peer >= 0) {
    from = &pair_with(static_cast<uint32_t>(peer));
    first = from->find_unmet(tag);
  } else {
    for (uint32_t rank = 0; rank < options_.world; ++rank) {
      if (rank == options_.rank) continue;
      Pair& pair = pair_with(rank);
      Incoming* found = pair.find_unmet(tag);
      if (found == nullptr || (first != nullptr && first->order < found->order)) continue;
      from = &pair;
      first = found;
    }
  }
  if (first == nullptr) {
    receives_.push_back(receive);
    ++(peer >= 0 ? from->receives : open_to_any_);
    return;
  }
  compare(receive, *first, *from);
  from->deliver(*first, receive);
  if (!first->complete()) return;
  from->remove(*first);
  finish(receive, finished);
}

Messenger::Current Messenger::take_match(Pair& pair, int32_t tag) {
  const auto fits = [&](const Current& receive) {
    const int source = receive->arguments_.peer;
    return receive->arguments_.tag == tag &&
           (source < 0 || source == static_cast<int>(pair.peer()));
  };
  const auto at = std::find_if(receives_.begin(), receives_.end(), fits);
  if (at == receives_.end()) return nullptr;
  const Current receive = *at;
  drop_receive(at);
  return receive;
}

void Messenger::drop_receive(std::list<Current>::iterator at) {
  const int source = (*at)->arguments_.peer;
  --(source < 0 ? open_to_any_ : pairs_[static_cast<uint32_t>(source)]->receives);
  receives_.erase(at);
}

bool Messenger::receiving_from(Pair& pair) const {
  if (pair.receives > 0 || open_to_any_ > 0) return true;
  const Incoming* arriving = pair.arriving();
  return arriving != nullptr && arriving->receive != nullptr;
}

bool Messenger::needs(Pair& pair) const { return !pair.sends.empty() || receiving_from(pair); }

// ---- slots --------------------------------------------------------------------------------------

bool Messenger::move_slots(Finished& finished) {
  uint32_t moved = 0;
  const size_t pairs = open_.size();
  for (size_t i = 0; i < pairs && moved < kBudget; ++i) {
    if (++next_to_move_ >= pairs) next_to_move_ = 0;
    Pair& pair = *open_[next_to_move_];
    if (!pair.joined()) continue;
    moved += take_slots(pair, kPairBudget, finished);
    moved += fill_slots(pair, kPairBudget, finished);
  }
  if (moved == 0 && !joining()) set_phase(Phase::kBlocked);
  return moved > 0;
}

uint32_t Messenger::fill_slots(Pair& pair, uint32_t most, Finished& finished) {
  uint32_t moved = 0;
  while (moved < most && !pair.sends.empty() && pair.slot_free()) {
    const Current send = pair.sends.front();
    if (!send->begun_) check_receiver(pair, send);
    set_phase(Phase::kSend);
    const bool done = pair.fill_slot();
    ++moved;
    if (!done) continue;
    pair.sends.pop_front();
    finish(send, finished);
  }
  return moved;
}

uint32_t Messenger::take_slots(Pair& pair, uint32_t most, Finished& finished) {
  uint32_t moved = 0;
  while (moved < most && receiving_from(pair) && pair.slot_full()) {
    set_phase(Phase::kReceive);
    Incoming* incoming = pair.arriving();
    if (incoming == nullptr) {
      incoming = &pair.open_envelope(++arrivals_);
      if (const Current receive = take_match(pair, incoming->envelope.tag)) {
        compare(receive, *incoming, pair);
        pair.deliver(*incoming, receive);
      }
    }
    const bool done = pair.empty_slot();
    ++moved;
    if (!done || incoming->receive == nullptr) continue;
    const Current receive = incoming->receive;
    pair.remove(*incoming);
    finish(receive, finished);
  }
  return moved;
}

bool Messenger::join_some() {
  const Clock::time_point now = Clock::now();
  if (joining() && now < next_join_) return false;
  bool progressed = false;
  bool waiting = false;
  uint32_t budget = kJoinsAtOnce;
  const size_t pairs = open_.size();
  for (size_t i = 0; i < pairs; ++i) {
    const size_t at = (next_to_join_ + i) % pairs;
    Pair& pair = *open_[at];
    if (pair.joined() || pair.left() || !needs(pair)) continue;
    waiting = true;
    if (budget-- == 0) {
      next_to_join_ = at;
      break;
    }
    set_phase(Phase::kConnect);
    const bool had_region = pair.region() != nullptr;
    progressed |= join(pair);
    if (had_region == (pair.region() != nullptr) && !pair.joined()) continue;
    progressed = true;
    note_join(pair);
  }
  const auto longer = std::min(join_pause_ + join_pause_ / 8, kLongJoinPoll);
  const auto pause = !waiting                   ? std::chrono::microseconds(0)
                     : progressed || !joining() ? kJoinPoll
                                                : longer;
  next_join_ = now + pause;
  if (pause == join_pause_) return progressed;
  join_pause_ = pause;
  const std::lock_guard<std::mutex> lock(mutex_);
  join_poll_ = pause;
  return progressed;
}

bool Messenger::join(Pair& pair) {
  try {
    return pair.join();
  } catch (const Trouble& trouble) {
    if (trouble.kind != ErrorKind::kPeerLost) throw;
    // A process that ended may have left as it should, or for a reason that it told.
    if (std::optional<Trouble> told = hear_of(pair)) throw std::move(*told);
    if (!pair.left()) throw;
    return true;
  }
}

// The last packet of a join lies in the socket from the moment on at which the peer has joined.
bool Messenger::finish_join(Pair& pair) {
  if (pair.region() == nullptr) return false;
  try {
    if (!pair.join()) return false;
  } catch (const Trouble&) {
    return false;
  }
  note_join(pair);
  return true;
}

void Messenger::note_join(const Pair& pair) {
  const std::lock_guard<std::mutex> lock(mutex_);
  regions_[pair.peer()] = pair.region();
  joined_ += pair.joined();
}

// ---- ends ---------------------------------------------------------------------------------------

void Messenger::finish(const Current& message, Finished& finished) {
  set_phase(Phase::kComplete);
  try {
    if (message->completion_.epilogue) message->completion_.epilogue();
  } catch (const std::exception& error) {
    throw Trouble{ErrorKind::kSystem, -1, error.what(), message};
  }
  if (!message->receives()) message->source_ = static_cast<int>(options_.rank);
  settle(*message, nullptr);
  finished.push_back(message);
  forget(*message);
}

void Messenger::forget(const Message& message) {
  const int peer = message.arguments_.peer;
  const std::lock_guard<std::mutex> lock(mutex_);
  --(peer < 0 ? from_any_ : naming_[static_cast<uint32_t>(peer)]);
  pending_.erase(message.sequence());
  if (pending_.empty()) set_phase(Phase::kIdle);
}

void Messenger::forget_all() {
  for (Pair* pair : open_) pair->clear();
  receives_.clear();
  open_to_any_ = 0;
  pending_.clear();
  posted_.clear();
  std::fill(naming_.begin(), naming_.end(), 0);
  from_any_ = 0;
  join_poll_ = join_pause_ = {};
}

void Messenger::abandon(Finished& finished) {
  for (const auto& [sequence, message] : pending_) {
    settle(*message, std::make_unique<const ErrorInfo>(identity_.describe(
                         *message, ErrorKind::kAborted, static_cast<int>(options_.rank),
                         "the group was destroyed on this rank before it was done")));
    finished.push_back(message);
  }
  forget_all();
}

void Messenger::shutdown() {
  // A forked child has a copy of the group but no part in it.
  const bool member = process_id_ == getpid();
  // Before joins are broken off, so that nobody takes that for a death.
  if (member) say_left();
  Finished finished;
  if (!leave(finished)) return;
  std::vector<std::shared_ptr<shm::Region>> regions(options_.world);
  std::vector<std::unique_ptr<Pair>> pairs;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    regions.swap(regions_);
    pairs.swap(pairs_);
    open_.clear();
  }
  for (uint32_t peer = 0; peer < options_.world && member; ++peer) {
    if (regions[peer] == nullptr) continue;
    const uint32_t own = options_.rank < peer ? 0 : 1;
    publish(regions[peer]->control(own).state, static_cast<uint32_t>(shm::RankState::kLeft));
    ring(regions[peer]->control(1 - own).bell);
  }
  complete(finished);
}

void Messenger::set_phase(Phase phase) {
  store_relaxed(options_.phase != nullptr ? *options_.phase : no_phase_,
                static_cast<uint32_t>(phase));
}

}  // namespace hybridcomm
