// The Python module hybridcomm._C. What it binds is described in hybridcomm/_C.pyi.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <span>
#include <string_view>

#include "base/reduce.h"
#include "torch/errors.h"
#include "torch/exit.h"
#include "torch/interpreter.h"
#include "torch/process_group.h"
#include "torch/recording.h"

namespace py = pybind11;

namespace hybridcomm {
namespace {

using Options = ProcessGroupHybridcomm::Options;

template <class T>
std::optional<T> optional_field(const py::object& object, const char* name) {
  return object.attr(name).cast<std::optional<T>>();
}

c10::intrusive_ptr<ProcessGroupHybridcomm> create_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    std::chrono::milliseconds timeout, const std::string& group,
    const std::vector<uint64_t>& global_ranks, const py::object& chosen) {
  auto options = c10::make_intrusive<Options>();
  options->timeout = timeout;
  options->group_name = group;
  options->global_ranks_in_group = global_ranks;
  Preferences& preferences = options->preferences;
  for (const auto& [collective, algorithm] : py::dict(chosen.attr("algorithms"))) {
    preferences.algorithms[collective.cast<std::string>()] = algorithm.cast<std::string>();
  }
  preferences.channels = optional_field<uint32_t>(chosen, "channels");
  preferences.slots = optional_field<uint32_t>(chosen, "slots");
  preferences.slot_bytes = optional_field<uint64_t>(chosen, "slot_bytes");
  return c10::make_intrusive<ProcessGroupHybridcomm>(store, rank, size, std::move(options));
}

py::dict build_info() {
  py::dict info;
  info["torch"] = HYBRIDCOMM_TORCH_VERSION;
  info["compiler"] = "g++ " __VERSION__;
  info["isa"] = reduce_isa();
  return info;
}

py::dict parse_program(const py::bytes& flat) {
  const std::string_view bytes = flat;
  const std::shared_ptr<const Program> program =
      translating([&] { return Program::parse(std::as_bytes(std::span(bytes))); });
  py::dict summary;
  summary["collective"] = collective_name(program->collective());
  summary["world"] = program->world();
  summary["rank"] = program->rank();
  summary["root"] = program->root() == shm::kNoRoot ? py::object(py::none())
                                                    : py::object(py::int_(program->root()));
  summary["channels"] = program->channels();
  summary["inputs"] = program->inputs();
  summary["outputs"] = program->outputs();
  summary["temporaries"] = program->temporaries();
  summary["steps"] = program->view().channel_begin[program->channels()];
  summary["min_slots"] = program->min_slots();
  summary["deterministic"] = program->deterministic();
  summary["one_sided"] = program->one_sided();
  return summary;
}

}  // namespace
}  // namespace hybridcomm

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using namespace hybridcomm;
  // The base classes must be known first.
  py::module_::import("torch._C._distributed_c10d");

  py::class_<ProcessGroupHybridcomm, c10::intrusive_ptr<ProcessGroupHybridcomm>, c10d::Backend>
      group(module, "ProcessGroupHybridcomm");
  py::class_<Options, c10::intrusive_ptr<Options>, c10d::Backend::Options>(group, "Options");
  group
      .def_property_readonly(
          "options",
          [](ProcessGroupHybridcomm& self) {
            return c10::static_intrusive_pointer_cast<Options>(self.getBackendOptions());
          })
      .def_property_readonly("shape",
                             [](const ProcessGroupHybridcomm& self) {
                               py::dict shape;
                               shape["channels"] = self.shape().channels;
                               shape["slots"] = self.shape().slots;
                               shape["slot_bytes"] = self.shape().slot_bytes;
                               return shape;
                             })
      // torch calls this on Gloo's groups, and set_timeout on others.
      .def("_set_default_timeout", &ProcessGroupHybridcomm::setTimeout, py::arg("timeout"),
           py::call_guard<py::gil_scoped_release>())
      .def_static(
          "exchange_call_preferences",
          [](const std::string& algorithm, bool deterministic, std::chrono::milliseconds timeout) {
            const CallPreferences old =
                exchange_call_preferences({algorithm, deterministic, timeout});
            return std::make_tuple(old.algorithm, old.deterministic, old.timeout);
          },
          py::arg("algorithm"), py::arg("deterministic"), py::arg("timeout"))
      .def("get_error", &ProcessGroupHybridcomm::getError,
           py::call_guard<py::gil_scoped_release>());

  module.def("create_backend", &create_backend, py::arg("store"), py::arg("rank"), py::arg("size"),
             py::arg("timeout"), py::arg("group"), py::arg("global_ranks"), py::arg("options"));
  module.def("build_info", &build_info);
  module.def("isa", &reduce_isa);
  module.def("parse_program", &parse_program, py::arg("flat"));
  module.def(
      "dump_flight_recorder",
      [](bool only_active) {
        std::string dump;
        {
          const py::gil_scoped_release released;
          dump = translating([&] { return dump_flight_recorder(only_active); });
        }
        return py::bytes(dump);
      },
      py::arg("only_active"));

  Service::set_interrupt_check(&check_signals);
  py::module_::import("atexit").attr("register")(py::cpp_function(&leave_groups));
}
