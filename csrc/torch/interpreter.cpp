// The lock, signals and the end of the interpreter.
#include "torch/interpreter.h"

#include <pybind11/pybind11.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>

#include "base/wait.h"

namespace hybridcomm {
namespace {

// A wait that is shorter never takes the interpreter's lock, which other threads may hold for
// milliseconds; Ctrl-C is noticed that much later.
constexpr std::chrono::milliseconds kSignalPeriod{100};

bool is_ending() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

}  // namespace

bool interpreter_usable() { return Py_IsInitialized() != 0 && !is_ending(); }

ReleaseGil::ReleaseGil() {
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) released_.emplace();
}

void check_signals() {
  // Python runs handlers on its main thread only.
  if (syscall(SYS_gettid) != getpid()) return;
  thread_local Clock::time_point last_look;
  const Clock::time_point now = Clock::now();
  if (now - last_look < kSignalPeriod || !interpreter_usable()) return;
  last_look = now;
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

}  // namespace hybridcomm
