// Builds Python's exceptions.
#include "torch/errors.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>

#include "torch/interpreter.h"

namespace py = pybind11;

namespace hybridcomm {
namespace {

// The names that hybridcomm/errors.py knows.
const char* kind_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kPeerLost: return "peer_lost";
    case ErrorKind::kTimeout: return "timeout";
    case ErrorKind::kMismatch: return "mismatch";
    case ErrorKind::kAborted: return "aborted";
    case ErrorKind::kInvalid: return "invalid";
    case ErrorKind::kNone:
    case ErrorKind::kSystem: break;
  }
  return "system";
}

py::dict known_fields(const ErrorInfo& info) {
  py::dict fields;
  if (!info.operation.empty()) {
    fields["operation"] = info.operation;
    fields["size_bytes"] = info.bytes;
  }
  if (info.sequence != 0) fields["sequence"] = info.sequence;
  if (!info.group.empty()) fields["group"] = info.group;
  if (info.rank >= 0) fields["rank"] = info.rank;
  if (info.peer >= 0) fields["peer"] = info.peer;
  return fields;
}

std::exception_ptr torch_exception(const std::string& message) {
  return std::make_exception_ptr(
      c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message));
}

}  // namespace

std::exception_ptr to_exception(const ErrorInfo& info) {
  if (!interpreter_usable()) return torch_exception(info.message);
  const py::gil_scoped_acquire gil;
  try {
    const py::object exception =
        py::module_::import("hybridcomm.errors")
            .attr("make_error")(kind_name(info.kind), info.message, known_fields(info));
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  } catch (py::error_already_set& error) {
    // Ctrl-C while Python was making the exception is what the caller must see.
    if (error.matches(PyExc_KeyboardInterrupt)) {
      error.restore();
      python_error interrupt;
      interrupt.persist();
      return std::make_exception_ptr(std::move(interrupt));
    }
    return torch_exception(info.message + " (and hybridcomm.errors failed: " + error.what() + ")");
  }
  python_error carrier;
  carrier.persist();
  return std::make_exception_ptr(std::move(carrier));
}

}  // namespace hybridcomm
