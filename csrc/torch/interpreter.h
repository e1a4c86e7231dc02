// What this library must know of the Python interpreter: who holds its lock, whether a signal waits
// for it, and whether it is still there. A thread that asks for the lock of an interpreter that has
// begun to end does not come back.
#pragma once

#include <Python.h>
#include <pybind11/gil.h>

#include <optional>

namespace hybridcomm {

// False before the interpreter has begun and after it has begun to end.
bool interpreter_usable();

// Lets go of the interpreter's lock while it lives, if this thread holds it. Around everything that
// may wait: the threads waited for may need it.
class ReleaseGil {
 public:
  ReleaseGil();

 private:
  std::optional<pybind11::gil_scoped_release> released_;
};

// Runs Python's signal handlers if signals wait for them, and throws what they raise (Ctrl-C:
// KeyboardInterrupt). For Service::set_interrupt_check.
void check_signals();

}  // namespace hybridcomm
