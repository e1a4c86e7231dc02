// Writing, reading and following cards.
#include "transports/shm/card.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "base/error.h"

namespace hybridcomm::shm {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(10);
// A card of an earlier process of that rank may lie in the store until the new one replaces it.
constexpr auto kReplacement = std::chrono::milliseconds(300);

struct Place {
  std::string host;
  std::string network;
  std::string processes;  // pid namespace

  bool operator==(const Place&) const = default;
};

std::string namespace_id(const char* path) {
  struct stat status;
  return stat(path, &status) == 0 ? std::to_string(status.st_ino) : "unknown";
}

Place here() {
  Place place{"unknown", namespace_id("/proc/self/ns/net"), namespace_id("/proc/self/ns/pid")};
  std::ifstream("/proc/sys/kernel/random/boot_id") >> place.host;
  return place;
}

// When a process started, in clock ticks since boot: with its number, its name for ever.
std::string start_time(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  // The second field is the program's name, in parentheses, and may hold anything.
  const size_t at = line.rfind(')');
  if (at == std::string::npos) return {};
  std::istringstream fields(line.substr(at + 1));
  std::string field;
  for (int i = 0; i < 20; ++i) fields >> field;
  return field;
}

std::string key(uint32_t rank) { return "hybridcomm/card/" + std::to_string(rank); }

}  // namespace

void Card::leave(uint32_t rank, KeyValueStore& store) {
  const Place place = here();
  store.set(key(rank), "1 " + std::to_string(getpid()) + " " + start_time(getpid()) + " " +
                           place.host + " " + place.network + " " + place.processes);
}

void Card::watch(KeyValueStore& store) {
  const auto now = Clock::now();
  if (now < next_look_) return;
  next_look_ = now + kInterval;
  if (process_ != nullptr && process_->alive()) return;
  const std::optional<std::string> text = store.try_get(key(rank_));
  if (!text) return;
  if (*text == text_ && process_ == nullptr && found_dead_ == Clock::time_point{}) return;
  if (*text != text_) {
    text_ = *text;
    process_ = nullptr;
    found_dead_ = {};
    std::istringstream fields(text_);
    std::string version, start;
    pid_t pid = 0;
    Place place;
    fields >> version >> pid >> start >> place.host >> place.network >> place.processes;
    if (!fields || version != "1" || pid <= 0) return;
    const Place ours = here();
    const std::string who = "rank " + std::to_string(rank_);
    if (place.host != ours.host) {
      throw CommError(ErrorKind::kInvalid,
                      who +
                          " runs on another host than this rank; this version of hybridcomm joins "
                          "ranks of one host only");
    }
    if (place.network != ours.network) {
      throw CommError(ErrorKind::kInvalid, who +
                                               " runs in another network namespace than this "
                                               "rank; start all ranks of a host in one");
    }
    if (place.processes != ours.processes) return;
    process_ = Process::find(pid);
    if (process_ != nullptr && start_time(pid) == start) return;
    process_ = nullptr;
    found_dead_ = now;
  } else if (process_ != nullptr) {
    process_ = nullptr;
    found_dead_ = now;
  }
  if (now - found_dead_ < kReplacement) return;
  ErrorInfo info;
  info.kind = ErrorKind::kPeerLost;
  info.peer = static_cast<int>(rank_);
  info.message = "rank " + std::to_string(rank_) + " died before it joined the group";
  throw CommError(std::move(info));
}

}  // namespace hybridcomm::shm
