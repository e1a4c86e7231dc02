// The sentences that errors are made of.
#include "engine/identity.h"

#include <iomanip>
#include <sstream>

#include "engine/operation.h"

namespace hybridcomm {

std::string size_text(uint64_t bytes) {
  std::ostringstream out;
  if (bytes < 1024) {
    out << bytes << " B";
  } else {
    const char* const units[] = {"KiB", "MiB", "GiB", "TiB"};
    double value = static_cast<double>(bytes) / 1024;
    int unit = 0;
    while (value >= 1024 && unit < 3) {
      value /= 1024;
      ++unit;
    }
    out << std::fixed << std::setprecision(1) << value << ' ' << units[unit];
  }
  return out.str();
}

std::string printable(const char* text, size_t size) {
  std::string result;
  for (size_t i = 0; i < size && text[i] != 0; ++i) {
    result += text[i] >= 32 && text[i] < 127 ? text[i] : '?';
  }
  return result;
}

std::string Identity::name(uint32_t of) const {
  std::string text = "rank " + std::to_string(of);
  if (of < global_ranks.size() && global_ranks[of] != of) {
    text += " (global rank " + std::to_string(global_ranks[of]) + ")";
  }
  return text;
}

ErrorInfo Identity::describe(const Operation& operation, ErrorKind kind, int peer,
                             const std::string& why) const {
  ErrorInfo info;
  info.kind = kind;
  info.operation = operation.name();
  info.group = group;
  info.sequence = operation.sequence();
  info.bytes = operation.bytes();
  info.rank = static_cast<int>(rank);
  info.peer = peer;
  std::ostringstream out;
  out << operation.name();
  if (operation.sequence() != 0) out << " #" << operation.sequence();
  const std::string what = operation.contents();
  out << " (" << what << (what.empty() ? "" : ", ") << "group '" << group << "', world size "
      << world << ") on " << name(rank) << ": " << why;
  info.message = out.str();
  return info;
}

}  // namespace hybridcomm
