// CommError as Python sees it.
#pragma once

#include <exception>
#include <utility>

#include "base/error.h"

namespace hybridcomm {

// The exception of hybridcomm/errors.py for `info`, which may be thrown more than once and on any
// thread. Exceptions of C++ classes would all arrive as RuntimeError or plain DistBackendError; one
// that carries a Python object keeps its class, through futures and autograd too. Takes the
// interpreter's lock; where the interpreter is ending, gives a DistBackendError of torch instead.
std::exception_ptr to_exception(const ErrorInfo& info);

// Runs `function`; a CommError leaves it as the exception above.
template <class Function>
decltype(auto) translating(Function&& function) {
  try {
    return std::forward<Function>(function)();
  } catch (const CommError& error) {
    std::rethrow_exception(to_exception(error.info()));
  }
}

}  // namespace hybridcomm
