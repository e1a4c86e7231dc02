// Sends and receives, and the monitored barrier, which is made of them.
#include <algorithm>
#include <limits>
#include <utility>

#include "torch/errors.h"
#include "torch/process_group.h"

namespace hybridcomm {
namespace {

struct MessageKind {
  c10d::OpType type;
  const char* name;
  const char* title;
};

constexpr MessageKind kSend{c10d::OpType::SEND, "send", "hybridcomm:send"};
constexpr MessageKind kRecv{c10d::OpType::RECV, "recv", "hybridcomm:recv"};
constexpr MessageKind kRecvAny{c10d::OpType::RECVANYSOURCE, "recv", "hybridcomm:recvAnySource"};
constexpr int kAnySource = -1;

// One message, as work: it also knows who sent it.
class MessageWork : public WorkHybridcomm {
 public:
  using WorkHybridcomm::WorkHybridcomm;

  int sourceRank() const override { return static_cast<const Message&>(*operation()).source(); }
};

}  // namespace

using Group = ProcessGroupHybridcomm;

Group::WorkPtr Group::send(Tensors& tensors, int to, int tag) {
  return message(MessageArguments::Kind::kSend, tensors, to, tag);
}

Group::WorkPtr Group::recv(Tensors& tensors, int from, int tag) {
  return message(MessageArguments::Kind::kRecv, tensors, from, tag);
}

Group::WorkPtr Group::recvAnysource(Tensors& tensors, int tag) {
  return message(MessageArguments::Kind::kRecv, tensors, kAnySource, tag);
}

Group::WorkPtr Group::message(MessageArguments::Kind kind, Tensors& tensors, int peer, int tag) {
  const bool sends = kind == MessageArguments::Kind::kSend;
  const bool any = !sends && peer == kAnySource;
  const MessageKind& what = sends ? kSend : any ? kRecvAny : kRecv;
  const CallSite site(what.name, rank_, group_);
  const at::Tensor& tensor = site.only(tensors, "tensors");
  const char* const argument = sends ? "dst" : "src";
  if (!any && (peer < 0 || peer >= size_)) {
    site.refuse(argument, "rank " + std::to_string(peer) +
                              " is not in the group, which has ranks 0 to " +
                              std::to_string(size_ - 1));
  }
  if (peer == rank_) {
    site.refuse(argument, "rank " + std::to_string(peer) +
                              " is this rank itself; a message needs another one");
  }
  if (any && size_ == 1) site.refuse(argument, "there is no other rank in the group");
  if (tag < 0) site.refuse("tag", std::to_string(tag) + " is negative");
  const Elements elements =
      sends ? site.check(tensor, "tensor") : site.check_output(tensor, "tensor");

  Operands operands;
  MessageArguments arguments;
  arguments.kind = kind;
  arguments.peer = peer;
  arguments.tag = tag;
  arguments.dtype = elements.dtype;
  arguments.count = elements.count;
  arguments.timeout = own_timeout(c10d::kUnsetTimeout);
  arguments.buffer = sends ? operands.read(tensor) : operands.write(tensor);
  const RecordedCall recorded = record(arguments, what.name, tensors);
  arguments.recorded = &recorded;
  ProfilerEvent event;
  if (at::hasCallbacks()) profile(arguments, what.name, tensors, event);
  auto work =
      c10::make_intrusive<MessageWork>(messenger_, observers_, what.type, what.title, tensors,
                                       sends ? Tensors{} : tensors, std::move(operands));
  work->submit(*messenger_, std::move(arguments));
  if (batch() != nullptr) add_to_batch(work);
  return work;
}

// ---- monitored barrier --------------------------------------------------------------------------

namespace {

// Rank 0 hears from every rank and then answers all. What they say carries a tag of its own, below
// those of users, so that a rank which came too late for one barrier does not disturb the next.
int32_t barrier_tag(uint32_t number) {
  return -1 - static_cast<int32_t>(number % std::numeric_limits<int32_t>::max());
}

// A message of one number, which lives as long as the message.
using Word = std::shared_ptr<int32_t>;

MessageArguments word(MessageArguments::Kind kind, int peer, int32_t tag, const Word& value,
                      std::chrono::milliseconds timeout) {
  MessageArguments arguments;
  arguments.kind = kind;
  arguments.peer = peer;
  arguments.tag = tag;
  arguments.dtype = DType::kInt32;
  arguments.count = 1;
  arguments.buffer = {value.get(), sizeof(*value)};
  arguments.timeout = timeout;
  arguments.on_complete = [value](const Operation&) {};
  return arguments;
}

}  // namespace

void Group::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const ReleaseGil released;
  const std::chrono::milliseconds timeout =
      options.timeout == c10d::kUnsetTimeout ? communicator_->timeout() : options.timeout;
  const int32_t tag = barrier_tag(monitored_barriers_++);
  const auto fail = [&](ErrorKind kind, int peer, const std::string& why) {
    ErrorInfo info;
    info.kind = kind;
    info.operation = "monitored_barrier";
    info.group = group_;
    info.rank = rank_;
    info.peer = peer;
    info.message = "monitored_barrier (group '" + group_ + "', world size " +
                   std::to_string(size_) + ") on " +
                   communicator_->identity().name(static_cast<uint32_t>(rank_)) + ": " + why;
    throw CommError(std::move(info));
  };
  const std::string limit = std::to_string(timeout.count()) + " ms";
  using Kind = MessageArguments::Kind;
  waiting([&] {
    if (timeout.count() <= 0) {
      fail(ErrorKind::kTimeout, rank_,
           "Rank " + std::to_string(rank_) + " timed out in monitoredBarrier after " + limit);
    }
    if (size_ == 1) return;
    // The first rank that did not come; -1 if all did.
    const auto verdict = std::make_shared<int32_t>(-1);
    if (rank_ != 0) {
      std::string trouble;
      try {
        messenger_->run(word(Kind::kSend, 0, tag, std::make_shared<int32_t>(rank_), timeout));
        // Rank 0 may use up its own time before it answers.
        messenger_->run(word(Kind::kRecv, 0, tag, verdict, 2 * timeout));
      } catch (const CommError& error) {
        if (error.info().kind != ErrorKind::kTimeout) throw;
        trouble = ": " + error.info().message;
      }
      if (trouble.empty() && *verdict < 0) return;
      if (*verdict == rank_) {
        fail(ErrorKind::kTimeout, rank_,
             "Rank " + std::to_string(rank_) + " came to monitoredBarrier too late; rank 0 had " +
                 "waited for it for " + limit);
      }
      fail(ErrorKind::kTimeout, *verdict >= 0 ? *verdict : 0,
           "Rank " + std::to_string(rank_) +
               " successfully reached monitoredBarrier, but received errors while waiting for "
               "send/recv from rank 0" +
               (*verdict >= 0 ? ": rank " + std::to_string(*verdict) + " did not reach it"
                              : trouble));
    }

    const auto ranks = static_cast<size_t>(size_);
    std::vector<std::shared_ptr<Operation>> arrivals(ranks), answers(ranks);
    for (int rank = 1; rank < size_; ++rank) {
      arrivals[rank] =
          messenger_->submit(word(Kind::kRecv, rank, tag, std::make_shared<int32_t>(0), timeout));
    }
    std::vector<int> missing;
    for (int rank = 1; rank < size_; ++rank) {
      try {
        messenger_->wait(arrivals[rank], std::chrono::milliseconds(0));
      } catch (const CommError& error) {
        if (error.info().kind != ErrorKind::kTimeout) throw;
        missing.push_back(rank);
      }
    }
    if (!missing.empty()) *verdict = missing.front();
    // Every rank is told, also one that comes too late; that one is not waited for.
    for (int rank = 1; rank < size_; ++rank) {
      answers[rank] = messenger_->submit(word(Kind::kSend, rank, tag, verdict, timeout));
    }
    for (int rank = 1; rank < size_; ++rank) {
      if (std::find(missing.begin(), missing.end(), rank) != missing.end()) continue;
      messenger_->wait(answers[rank], std::chrono::milliseconds(0));
    }
    if (missing.empty()) return;
    std::string who = "Rank " + std::to_string(missing.front());
    if (wait_all_ranks && missing.size() > 1) {
      who = "Ranks ";
      for (const int rank : missing) {
        who += (rank == missing.front() ? "" : ", ") + std::to_string(rank);
      }
    }
    fail(ErrorKind::kTimeout, missing.front(),
         who + " failed to pass monitoredBarrier in " + limit);
  });
}

}  // namespace hybridcomm
