// What a compiled graph needs from C++: its inputs as CPU tensors, its results
// as tensors of the device, and the time in between as the core's own.
#include "alias.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <unordered_map>

namespace py = pybind11;

namespace neuron_lab {

void bind_graph(py::module_& m); // called by bindings.cpp

namespace {

const at::Tensor* as_tensor(const py::handle& value) {
  return THPVariable_Check(value.ptr()) ? &THPVariable_Unpack(value.ptr()) : nullptr;
}

py::list aliases(const py::list& values) {
  py::list out(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    py::handle value = PyList_GET_ITEM(values.ptr(), static_cast<Py_ssize_t>(i));
    const auto* tensor = as_tensor(value);
    out[i] = tensor != nullptr && on_neuron(*tensor) ? py::cast(alias(*tensor)) : py::reinterpret_borrow<py::object>(value);
  }
  return out;
}

// Results that share memory go on sharing it; those over an input's bytes find
// its storage by themselves. What lies over a CPU input is copied: its bytes are
// not the device's to take.
py::list hand_over_all(
    const py::list& results, const std::vector<at::Tensor>& cpu_inputs, const std::vector<int64_t>& cores) {
  std::unordered_map<const c10::StorageImpl*, at::Tensor> owners; // tensor that a CPU storage belongs to
  owners.reserve(cpu_inputs.size() + results.size());
  for (const auto& input : cpu_inputs) {
    owners.try_emplace(input.storage().unsafeGetStorageImpl(), input);
  }
  py::list out(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    py::handle value = PyList_GET_ITEM(results.ptr(), static_cast<Py_ssize_t>(i));
    const auto* tensor = as_tensor(value);
    if (tensor == nullptr || !tensor->defined() || cores[i] < 0 || on_neuron(*tensor)) {
      out[i] = value;
      continue;
    }
    auto result = *tensor;
    const auto* storage = result.storage().unsafeGetStorageImpl();
    if (const auto found = owners.find(storage); found != owners.end()) {
      if (on_neuron(found->second)) {
        out[i] = py::cast(view_on(found->second, result));
        continue;
      }
      result = result.clone();
      storage = result.storage().unsafeGetStorageImpl();
    }
    // Known to its Python object and to this function.
    auto taken = hand_over(std::move(result), static_cast<c10::DeviceIndex>(cores[i]), /*references=*/2);
    owners.try_emplace(storage, taken);
    out[i] = py::cast(std::move(taken));
  }
  return out;
}

// A graph's run: `with` it, CPU allocations of this thread belong to the core.
struct GraphScope {
  c10::DeviceIndex core;
  std::unique_ptr<KernelScope> scope;

  void enter() {
    touch();
    scope = std::make_unique<KernelScope>(core);
  }
};

// A part of a graph's run that is not the core's own work (a collective).
struct OutsideGraph {
  std::unique_ptr<KernelScope> scope;
};

} // namespace

void bind_graph(py::module_& m) {
  m.def("aliases", &aliases, "CPU tensors over the bytes of the tensors in a list; everything else as it is");
  m.def(
      "hand_over", &hand_over_all, py::arg("results"), py::arg("cpu_inputs"), py::arg("cores"),
      "Results of a graph as tensors of the device; -1 for those that stay on the CPU");
  m.def("on_device", &on_device, "A tensor of the device over the bytes of a CPU tensor");
  py::class_<OutsideGraph>(m, "OutsideGraph")
      .def(py::init<>())
      .def("__enter__", [](OutsideGraph& self) { self.scope = std::make_unique<KernelScope>(-1); })
      .def("__exit__", [](OutsideGraph& self, const py::args&) { self.scope.reset(); });
  py::class_<GraphScope>(m, "GraphScope")
      .def(py::init([](int core) { return GraphScope{static_cast<c10::DeviceIndex>(core), nullptr}; }))
      .def("__enter__", [](GraphScope& self) { self.enter(); })
      .def("__exit__", [](GraphScope& self, const py::args&) { self.scope.reset(); });
}

} // namespace neuron_lab
