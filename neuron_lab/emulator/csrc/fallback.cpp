#include "fallback.h"

#include "generator.h"

#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <cstdlib>
#include <unordered_set>

namespace neuron_lab {
namespace {

using c10::IValue;
// One argument that was replaced by a CPU tensor, with the tensor it stands for.
struct Borrowed {
  at::Tensor cpu;
  at::Tensor own;
  bool written;
};

// The arguments of one call on their way to the CPU.
struct Call {
  OperatorTraits& traits;
  c10::SmallVector<Borrowed, 6> borrowed;
  c10::SmallVector<c10::Device, 2> cpu_seen;
  at::Generator generator;
  int core = -1;
  bool had_device = false;

  void check_generator() const {
    if (!generator.defined()) {
      return;
    }
    const bool ours = !borrowed.empty() || had_device;
    const auto wanted = ours ? c10::Device(kNeuron, static_cast<c10::DeviceIndex>(core)) : c10::Device(c10::kCPU);
    TORCH_CHECK(
        generator.device() == wanted, "Expected a '", wanted, "' device type for generator but found '", generator.device(),
        "' (operator ", traits.name, "). Make it with torch.Generator(\"", wanted, "\"), or draw on the generator's device "
        "and move the tensor.");
  }

  at::Tensor lend(const at::Tensor& tensor, bool written, bool may_be_on_cpu) {
    if (!tensor.defined()) {
      return tensor;
    }
    const auto device = tensor.device();
    if (device.type() != kNeuron) {
      // A CPU scalar may be read beside device tensors; written it may not be.
      if (device.type() == c10::kCPU && (tensor.dim() > 0 || written) && !may_be_on_cpu && cpu_seen.empty()) {
        cpu_seen.push_back(device);
      }
      return tensor;
    }
    if (core < 0) {
      core = device.index();
    } else if (core != device.index()) {
      mixed_devices(traits.name, c10::Device(kNeuron, static_cast<c10::DeviceIndex>(core)), device);
    }
    if (C10_UNLIKELY(traits.tensor_engine)) {
      refuse_float64(traits, tensor.scalar_type());
    }
    // The same tensor twice (as an input and as out=) stays one tensor, which kernels check for. Long lists are
    // those of the foreach operators, whose tensors differ.
    if (borrowed.size() < 16) {
      for (auto& item : borrowed) {
        if (item.own.is_same(tensor)) {
          item.written |= written;
          return item.cpu;
        }
      }
    }
    borrowed.push_back({borrow(tensor), tensor, written});
    return borrowed.back().cpu;
  }

  void lend(IValue& value, const c10::Argument& argument) {
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    const bool may_be_on_cpu = traits.takes_cpu_arguments && argument.name() != "values";
    if (value.isTensor()) {
      const auto& tensor = value.toTensor();
      if (tensor.defined()) {
        value = IValue(lend(tensor, written, may_be_on_cpu));
      }
    } else if (value.isTensorList()) {
      auto list = value.toTensorList();
      c10::List<at::Tensor> lent;
      lent.reserve(list.size());
      for (size_t k = 0; k < list.size(); ++k) {
        lent.push_back(lend(list.get(k), written, may_be_on_cpu));
      }
      value = IValue(std::move(lent));
    } else if (value.isOptionalTensorList()) {
      auto list = value.toOptionalTensorList();
      c10::List<std::optional<at::Tensor>> lent;
      lent.reserve(list.size());
      for (size_t k = 0; k < list.size(); ++k) {
        std::optional<at::Tensor> item = list.get(k);
        lent.push_back(item.has_value() ? std::optional<at::Tensor>(lend(*item, written, may_be_on_cpu)) : item);
      }
      value = IValue(std::move(lent));
    } else if (value.isDevice()) {
      const auto device = value.toDevice();
      if (device.type() == kNeuron) {
        had_device = true;
        core = core < 0 ? resolve_core(device.index()) : core;
        value = IValue(c10::Device(c10::kCPU));
      }
    } else if (value.isGenerator()) {
      generator = value.toGenerator();
      value = IValue(cpu_generator(generator));
    } else if (value.isNone() && argument.name() == "generator") {
      value = IValue(cpu_generator_of(static_cast<c10::DeviceIndex>(core < 0 ? current_core() : core)));
    }
  }

  at::Tensor take(at::Tensor&& result, bool stays_on_cpu) {
    if (!result.defined() || result.device().type() != c10::kCPU) {
      return std::move(result);
    }
    for (auto& item : borrowed) {
      if (item.cpu.is_same(result)) {
        return item.own;
      }
    }
    if (result.has_storage()) {
      const auto* storage = result.storage().unsafeGetStorageImpl();
      for (auto& item : borrowed) {
        if (item.cpu.storage().unsafeGetStorageImpl() == storage) {
          return view_on(item.own, result);
        }
      }
    }
    return stays_on_cpu ? std::move(result) : hand_over(std::move(result), static_cast<c10::DeviceIndex>(core));
  }

  void take(IValue& value, bool stays_on_cpu) {
    if (value.isTensor()) {
      auto result = std::move(value).toTensor();
      value = IValue(take(std::move(result), stays_on_cpu));
    } else if (value.isTensorList()) {
      auto results = std::move(value).toTensorVector();
      c10::List<at::Tensor> taken;
      taken.reserve(results.size());
      for (auto& result : results) {
        taken.push_back(take(std::move(result), stays_on_cpu));
      }
      value = IValue(std::move(taken));
    }
  }

  // A kernel that failed may have resized a shared view; the tensor itself is as it was.
  void forget_views() {
    for (auto& item : borrowed) {
      if (item.written &&
          (item.cpu.storage().data() != item.own.storage().data() ||
           item.cpu.storage().nbytes() != item.own.storage().nbytes())) {
        if (auto* block = block_of(item.own.storage().data_ptr())) {
          if (auto* view = block->cpu_view.exchange(nullptr)) {
            c10::intrusive_ptr<c10::StorageImpl>::reclaim(view);
          }
        }
      }
    }
  }
};

// The generic fallback, for operators that were registered after this library.
void boxed_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  run_on_cpu(traits_of(op), op, stack);
}

// The same with the traits at hand, so that nothing is looked up per call.
struct BoxedKernel final : c10::OperatorKernel {
  OperatorTraits& traits;
  explicit BoxedKernel(OperatorTraits& t) : traits(t) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    run_on_cpu(traits, op, stack);
  }
};

void not_dense(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.schema().name(),
      ": the emulated neuron device holds dense, strided tensors only, no sparse, quantized or nested ones. Whether "
      "TorchNeuron supports them is not documented. Work on them on the CPU and move a dense tensor to the device.");
}

} // namespace

void mixed_devices(const std::string& op, c10::Device one, c10::Device other) {
  TORCH_CHECK(
      false, "Expected all tensors to be on the same device, but found at least two devices, ", one, " and ", other,
      "! (operator ", op, ") Move one of them with tensor.to(\"", one, "\").");
  std::abort(); // not reached: the check above throws
}

void run_on_cpu(OperatorTraits& traits, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  touch();
  note(traits);
  const auto& schema = op.schema();
  const auto& arguments = schema.arguments();
  const auto first = stack->size() - arguments.size();
  Call call{traits};
  for (size_t i = 0; i < arguments.size(); ++i) {
    call.lend((*stack)[first + i], arguments[i]);
  }
  if (C10_UNLIKELY(traits.takes_cpu_arguments && !call.borrowed.empty() && !arguments.empty())) {
    // They may lie on the CPU beside a tensor of the device, not the other way about.
    const auto& self = (*stack)[first];
    if (self.isTensor() && self.toTensor().defined() && self.toTensor().dim() > 0 &&
        !call.borrowed[0].cpu.is_same(self.toTensor())) {
      mixed_devices(traits.name, call.borrowed[0].own.device(), c10::Device(c10::kCPU));
    }
  }
  if (call.core < 0) {
    call.core = current_core();
  } else if (!call.cpu_seen.empty() && !call.borrowed.empty()) {
    mixed_devices(traits.name, call.borrowed[0].own.device(), call.cpu_seen[0]);
  }
  call.check_generator();
  try {
    KernelScope scope(static_cast<c10::DeviceIndex>(call.core));
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    for (auto& item : call.borrowed) {
      if (item.written) {
        write_back(item.cpu, item.own);
      }
    }
  } catch (const c10::NotImplementedError& error) {
    call.forget_views();
    TORCH_CHECK_NOT_IMPLEMENTED(
        std::string_view(error.what_without_backtrace()).find("from the 'CPU' backend") == std::string_view::npos,
        "The operator '", traits.name, "' is not available on the emulated neuron device: it runs operators with their CPU "
        "kernels, and this one has none. Register one with torch.library for the device type \"cpu\", or for \"neuron\".");
    throw;
  } catch (...) {
    call.forget_views();
    throw;
  }
  const auto results = schema.returns().size();
  const auto base = stack->size() - results;
  for (size_t i = 0; i < results; ++i) {
    call.take((*stack)[base + i], (traits.cpu_results >> i & 1) != 0);
  }
}

void register_cpu_kernels() {
  static auto* library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, static_cast<uint32_t>(__LINE__));
  // Composite kernels that ask for the device's type or for a kernel of its own, and so do not work on ours.
  static const std::unordered_set<std::string> composite = {
      "aten::convolution", "aten::convolution_backward", "aten::conj_physical_", "aten::mode"};
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) {
      continue;
    }
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
      continue;
    }
    // The composite foreach kernels run whole on the CPU: one borrow per tensor instead of one operator per tensor.
    if (op->hasKernelForDispatchKey(c10::DispatchKey::CPU) || composite.count(name.name) > 0 ||
        name.name.rfind("aten::_foreach_", 0) == 0) {
      const auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
      library->impl(
          full.substr(6).c_str(),
          torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>(traits_of(*op))));
    }
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>());
}
TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&not_dense>());
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&not_dense>());
}
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&not_dense>());
}
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&not_dense>());
}

// Refused where it is made of tensors of the device: composite operators ask a nested tensor for a size that it lacks.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_nested_tensor_from_tensor_list", torch::CppFunction::makeFromBoxedFunction<&not_dense>());
}

} // namespace neuron_lab
