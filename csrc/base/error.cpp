// Errors that carry errno.
#include "base/error.h"

#include <cerrno>
#include <system_error>

namespace hybridcomm {

CommError system_error(const std::string& what) {
  return CommError(ErrorKind::kSystem, what + ": " + std::generic_category().message(errno));
}

}  // namespace hybridcomm
