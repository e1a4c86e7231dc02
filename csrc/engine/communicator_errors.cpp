// What a communicator's errors say. Every sentence names the operation, its sequence number, size
// and group, this rank, and the rank to blame with what it was doing.
#include <cstring>
#include <sstream>

#include "engine/communicator.h"
#include "transports/shm/cause.h"

namespace hybridcomm {
namespace {

bool moves_data(uint16_t collective) {
  return static_cast<Collective>(collective) != Collective::kBarrier;
}

bool reduces(uint16_t collective) {
  const auto c = static_cast<Collective>(collective);
  return c == Collective::kAllReduce || c == Collective::kReduceScatter || c == Collective::kReduce;
}

}  // namespace

std::string CollectiveOperation::contents() const {
  if (!moves_data(static_cast<uint16_t>(collective()))) return {};
  return size_text(bytes()) + " of " + dtype_name(arguments_.dtype);
}

int Communicator::first_to_differ(const CollectiveOperation& operation, int otherwise) const {
  const shm::OperationHeader own = header_of(operation);
  for (uint32_t rank = 0; rank < options_.shape.world; ++rank) {
    if (rank == options_.rank) continue;
    shm::OperationHeader& theirs = region_->control(rank).board[operation.sequence_ % 2];
    if (observe(theirs.sequence) == own.sequence && std::memcmp(&own, &theirs, sizeof(own)) != 0) {
      return static_cast<int>(rank);
    }
  }
  return otherwise;
}

ErrorInfo Communicator::describe_cause(const CollectiveOperation& operation, uint64_t word) const {
  const auto [kind, blamed, reporter] = shm::read_cause(word);
  const int world = static_cast<int>(options_.shape.world);
  // The word lies in memory that every rank writes.
  if (blamed >= world || reporter < 0 || reporter >= world) {
    return identity_.describe(operation, ErrorKind::kSystem, -1,
                              "the group failed; its cause is unreadable");
  }
  const std::string who = blamed < 0 ? "a rank" : name(static_cast<uint32_t>(blamed));
  const std::string by = reporter == static_cast<int>(options_.rank)
                             ? std::string()
                             : " (reported by " + name(static_cast<uint32_t>(reporter)) + ")";
  std::string why;
  switch (kind) {
    case ErrorKind::kPeerLost: {
      if (blamed < 0) break;
      const auto lost = static_cast<uint32_t>(blamed);
      why = who + how_lost(lost) + (joined_ ? doing(lost, operation.sequence_) : "") + by;
      break;
    }
    case ErrorKind::kTimeout:
      if (blamed == static_cast<int>(options_.rank)) {
        why = name(static_cast<uint32_t>(reporter)) +
              " had given up waiting for this rank, which came too late";
      } else {
        why = "Timed out waiting for " + who +
              (blamed >= 0 && joined_
                   ? ", which was then" + doing(static_cast<uint32_t>(blamed), operation.sequence_)
                   : "") +
              by;
      }
      break;
    case ErrorKind::kMismatch: {
      if (blamed < 0 || !joined_) {
        why = "the ranks were set up differently: see the error of " + who + by;
        break;
      }
      why = explain_mismatch(static_cast<uint32_t>(reporter), static_cast<uint32_t>(blamed)) + by;
      const int own = static_cast<int>(options_.rank);
      return identity_.describe(operation, kind,
                                first_to_differ(operation, blamed == own ? reporter : blamed), why);
    }
    case ErrorKind::kAborted: why = who + " aborted the group (abort() or Ctrl-C)"; break;
    default:
      return identity_.describe(operation, ErrorKind::kSystem, blamed,
                                "the group failed on " + name(static_cast<uint32_t>(reporter)) +
                                    "; see that rank's error");
  }
  return identity_.describe(operation, kind, blamed, why);
}

std::string Communicator::explain_mismatch(uint32_t a, uint32_t b) const {
  const shm::OperationHeader& header = latest_header(a);
  if (std::memcmp(&header, &latest_header(b), sizeof(header)) == 0) {
    if (static_cast<Collective>(header.collective) != Collective::kAllToAll) {
      return "what " + name(a) + " and " + name(b) +
             " gave does not fit together: see the error of " + name(a);
    }
    const bool forwards = broken_promise(a, b, header.sequence);
    const uint32_t from = forwards ? a : b, to = forwards ? b : a;
    const LinkControl& link = region_->link(0, from, to);
    return "the ranks disagree: " + name(from) + " sends " +
           size_text(load_relaxed(link.promised[header.sequence % 2])) + " to " + name(to) +
           ", which expects " + size_text(load_relaxed(link.expected[header.sequence % 2])) +
           ". What one rank's input_split_sizes say of another, that rank's output_split_sizes "
           "must say too";
  }
  return "the ranks disagree: " + name(a) + " called " + describe_header(a) + ", " + name(b) +
         " called " + describe_header(b) +
         ". All ranks of a group must make the same calls in the same order, with the same dtype, "
         "number of elements, operation, root and algorithm (HYBRIDCOMM_ALGORITHM)";
}

shm::OperationHeader& Communicator::latest_header(uint32_t rank) const {
  shm::RankControl& control = region_->control(rank);
  const bool second = observe(control.board[1].sequence) > observe(control.board[0].sequence);
  return control.board[second ? 1 : 0];
}

std::string Communicator::describe_header(uint32_t rank) const {
  shm::OperationHeader& header = latest_header(rank);
  const uint64_t sequence = observe(header.sequence);
  if (sequence == 0) return "nothing yet";
  std::ostringstream out;
  out << collective_name(static_cast<Collective>(header.collective)) << " #" << sequence;
  if (moves_data(header.collective)) {
    out << " of ";
    if (static_cast<Collective>(header.collective) != Collective::kAllToAll) {
      out << header.count << ' ';
    }
    out << dtype_name(static_cast<DType>(header.dtype));
    if (header.splits != 0) out << ", unevenly split";
  }
  if (reduces(header.collective)) out << " with " << redop_name(static_cast<RedOp>(header.redop));
  if (header.root != shm::kNoRoot) out << " from root " << header.root;
  out << " by " << printable(header.algorithm, sizeof(header.algorithm));
  return out.str();
}

std::string Communicator::doing(uint32_t rank, uint64_t sequence) const {
  shm::RankControl& control = region_->control(rank);
  const uint64_t completed = observe(control.completed);
  const uint64_t begun =
      std::max(observe(control.board[0].sequence), observe(control.board[1].sequence));
  if (begun < sequence) {
    return begun == 0 ? std::string(" before its first operation")
                      : " before this operation; its last was #" + std::to_string(begun) +
                            (completed < begun ? " (not finished)" : "");
  }
  const auto phase = static_cast<Phase>(load_relaxed(control.phase));
  return std::string(" in the middle of it, in phase '") + phase_name(phase) + "'";
}

const char* Communicator::how_lost(uint32_t rank) const {
  const bool left =
      observe(region_->control(rank).state) == static_cast<uint32_t>(shm::RankState::kLeft);
  return left ? " ended or destroyed the group" : " died";
}

std::string Communicator::waiting_for_peers(const CollectiveOperation& operation, int& peer) const {
  peer = -1;
  switch (operation.stage_) {
    case CollectiveOperation::Stage::kJoin:
      if (join_ != nullptr) return join_->waiting_for(peer);
      return "the group to be joined";
    case CollectiveOperation::Stage::kPublish:
    case CollectiveOperation::Stage::kAgree: {
      std::string missing;
      for (uint32_t rank = 0; rank < options_.shape.world; ++rank) {
        shm::RankControl& control = region_->control(rank);
        if (observe(control.board[operation.sequence_ % 2].sequence) == operation.sequence_) {
          continue;
        }
        if (peer < 0) peer = static_cast<int>(rank);
        const uint64_t begun =
            std::max(observe(control.board[0].sequence), observe(control.board[1].sequence));
        missing += (missing.empty() ? "" : ", ") + name(rank) +
                   (begun == 0 ? " (which has called nothing)"
                               : " (whose last call was #" + std::to_string(begun) + ")");
      }
      return missing + " to call it";
    }
    case CollectiveOperation::Stage::kRun: break;
  }
  peer = static_cast<int>(operation.blocked_.peer);
  return name(operation.blocked_.peer) +
         (operation.blocked_.receiving ? " to send" : " to receive") + "; that rank is" +
         doing(operation.blocked_.peer, operation.sequence_);
}

}  // namespace hybridcomm
