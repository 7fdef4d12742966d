// The Python face of the emulated device: one module, plain functions.
#include "dropout.h"
#include "fallback.h"
#include "generator.h"
#include "hooks.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

namespace neuron_lab {

void bind_graph(py::module_& m); // graph.cpp
#ifdef USE_DISTRIBUTED
void bind_process_group(py::module_& m); // process_group.cpp
#endif

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "C++ part of the emulated neuron device of neuron-lab";
  m.def(
      "start",
      [](int cores, size_t hbm_bytes, int cores_per_bank, int start_core, bool refuse_float64, bool refuse_fallback,
         const std::string& problem) {
        configure({cores, hbm_bytes, cores_per_bank, start_core, refuse_float64, refuse_fallback, problem});
        static const bool once = [] {
          install_allocators();
          register_hooks();
          register_cpu_kernels();
          return true;
        }();
        (void)once;
      },
      py::kw_only(), py::arg("cores"), py::arg("hbm_bytes"), py::arg("cores_per_bank"), py::arg("start_core"),
      py::arg("refuse_float64"), py::arg("refuse_fallback"), py::arg("problem"));
  m.def("device_count", [] { return config().cores; });
  m.def("current_device", [] { return static_cast<int>(current_core()); });
  m.def("set_device", [](int core) { set_current_core(resolve_core(static_cast<c10::DeviceIndex>(core))); });
  m.def("exchange_device", [](int core) {
    return static_cast<int>(exchange_core(core < 0 ? c10::DeviceIndex(-1) : resolve_core(static_cast<c10::DeviceIndex>(core))));
  });
  m.def("check_device", [](int core) { return static_cast<int>(resolve_core(static_cast<c10::DeviceIndex>(core))); });
  m.def("restrict_to", [](int core) { restrict_to(static_cast<c10::DeviceIndex>(core)); });
  m.def("touch", &touch);
  m.def("touched", &touched);
  m.def("in_bad_fork", &in_bad_fork);
  m.def("default_generator", [](int core) { return default_generator(static_cast<c10::DeviceIndex>(core)); });
  m.def("default_generator_unchecked", [](int core) { return default_generator_of_any_rank(static_cast<c10::DeviceIndex>(core)); });
  m.def(
      "cpu_generator_of", [](int core) { return cpu_generator_of(static_cast<c10::DeviceIndex>(core)); },
      "The CPU generator that a core's random numbers come from, for CPU operators of its graphs");
  m.def(
      "dropout", &dropout, py::arg("input"), py::arg("p"), py::arg("train"), py::kw_only(), py::arg("generator"),
      "aten::native_dropout with a generator");
  m.def("group_exists", &group_exists);
  m.def("set_group_exists", &set_group_exists);
  m.def("executed_operators", &executed_operators);
  m.def("fallback_operators", &fallback_operators);
  m.def("clear_tracking", &clear_tracking);
  m.def(
      "note_operator",
      [](const std::string& name, const std::string& overload, bool has_float64) {
        torch::PyWarningHandler warnings_reach_python;
        const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
        if (op.has_value()) {
          auto& traits = traits_of(*op);
          note(traits);
          if (traits.tensor_engine && has_float64) {
            refuse_float64(traits, at::kDouble);
          }
        }
      },
      "What eager mode notes and refuses of an operator, for a graph that is about to be compiled");
  bind_graph(m);
#ifdef USE_DISTRIBUTED
  bind_process_group(m);
#endif
}

} // namespace neuron_lab
