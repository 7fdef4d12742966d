// The operators that a model calls most, without boxing: the same as the boxed
// kernel (borrow, CPU kernel, hand over), with their types known to the compiler.
#include "fallback.h"

#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/eq_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/ge_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/gt_ops.h>
#include <ATen/ops/index_select_ops.h>
#include <ATen/ops/le_ops.h>
#include <ATen/ops/lt_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/where_ops.h>
#include <ATen/ops/zero_ops.h>
#include <torch/library.h>

namespace neuron_lab {
namespace {

using at::Tensor;

// Looks at every tensor argument once: which core, and whether a CPU tensor is among them.
struct Devices {
  OperatorTraits& traits;
  int core = -1;
  const Tensor* on_cpu = nullptr;

  void see(const Tensor& tensor) {
    const auto device = tensor.device();
    if (device.type() != kNeuron) {
      if (tensor.dim() > 0) {
        on_cpu = &tensor;
      }
    } else if (core < 0) {
      core = device.index();
    } else if (core != device.index()) {
      mixed_devices(traits.name, c10::Device(kNeuron, static_cast<c10::DeviceIndex>(core)), device);
    }
    if (C10_UNLIKELY(traits.tensor_engine)) {
      refuse_float64(traits, tensor.scalar_type());
    }
  }
  void see(const at::ITensorListRef& tensors) {
    for (const Tensor& tensor : tensors) {
      see(tensor);
    }
  }
  template <typename Other>
  void see(const Other&) {}

  // A CPU scalar may be read beside device tensors; written it may not be.
  void see_written(const Tensor& tensor) {
    see(tensor);
    if (!on_neuron(tensor)) {
      on_cpu = &tensor;
    }
  }

  c10::DeviceIndex check() const {
    if (C10_UNLIKELY(on_cpu != nullptr)) {
      mixed_devices(traits.name, c10::Device(kNeuron, static_cast<c10::DeviceIndex>(core)), on_cpu->device());
    }
    return static_cast<c10::DeviceIndex>(core);
  }
};

template <typename T>
T&& lend(T&& value) {
  return std::forward<T>(value);
}
inline Tensor lend(const Tensor& tensor) {
  return on_neuron(tensor) ? borrow(tensor) : tensor;
}
inline std::vector<Tensor> lend(const at::ITensorListRef& tensors) {
  std::vector<Tensor> lent;
  lent.reserve(tensors.size());
  for (const Tensor& tensor : tensors) {
    lent.push_back(lend(tensor));
  }
  return lent;
}

template <typename Op>
OperatorTraits& traits() {
  static auto& found = traits_of(c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name));
  return found;
}

constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);

template <typename Op, typename Schema>
struct Direct;

// A fresh result.
template <typename Op, typename... Arguments>
struct Direct<Op, Tensor(Arguments...)> {
  static Tensor call(Arguments... arguments) {
    auto& known = traits<Op>();
    touch();
    note(known);
    Devices devices{known};
    (devices.see(arguments), ...);
    const auto core = devices.check();
    KernelScope scope(core);
    return hand_over(Op::redispatch(kCpu, lend(arguments)...), core);
  }
};

// In place; none of these resizes its argument.
template <typename Op, typename... Arguments>
struct Direct<Op, Tensor&(Tensor&, Arguments...)> {
  static Tensor& call(Tensor& self, Arguments... arguments) {
    auto& known = traits<Op>();
    touch();
    note(known);
    Devices devices{known};
    devices.see_written(self);
    (devices.see(arguments), ...);
    KernelScope scope(devices.check());
    auto own = borrow(self);
    Op::redispatch(kCpu, own, lend(arguments)...);
    return self;
  }
};

template <typename Op>
void direct(torch::Library& library) {
  auto name = std::string(Op::name).substr(6); // without aten::
  if (*Op::overload_name != '\0') {
    name += std::string(".") + Op::overload_name;
  }
  library.impl(name.c_str(), &Direct<Op, typename Op::schema>::call);
}

template <typename... Ops>
void direct_all(torch::Library& library) {
  (direct<Ops>(library), ...);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using namespace at::_ops;
  direct_all<add_Tensor, sub_Tensor, mul_Tensor, div_Tensor, add__Tensor, sub__Tensor, mul__Tensor, div__Tensor>(m);
  direct_all<mm, bmm, addmm, cat, _softmax, mean_dim, sum_dim_IntList, index_select, where_self, pow_Tensor_Scalar>(m);
  direct_all<relu, at::_ops::exp, neg, silu, gelu, sigmoid, at::_ops::tanh, rsqrt, at::_ops::sqrt, fill__Scalar, zero_>(m); // qualified: <cmath> has these names too
  direct_all<eq_Scalar, eq_Tensor, lt_Tensor, lt_Scalar, gt_Tensor, gt_Scalar, le_Tensor, ge_Tensor>(m);
}

} // namespace
} // namespace neuron_lab
