// torch.autocast("neuron"): PyTorch's standard lists ("CUDA-style", as the
// backend documents). One boxed kernel per policy casts whatever tensors an
// operator takes; the templates of PyTorch's own header would do the same and
// take as long to compile as the rest of the device. A test holds the lists
// against that header.
#include "runtime.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

namespace at::autocast {
TORCH_API Tensor cached_cast(ScalarType to_type, const Tensor& arg, DeviceType device_type);
TORCH_API ScalarType get_autocast_dtype(DeviceType device_type);
} // namespace at::autocast

namespace neuron_lab {
namespace {

using c10::IValue;

// Matrix products and convolutions: the lower precision that autocast was given.
constexpr const char* kLowerPrecision[] = {
    "_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul",
    "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention",
};

// Where range or precision matters: float32.
constexpr const char* kFloat32[] = {
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm",
    "rms_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity",
    "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div",
    "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss",
    "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist",
    "pdist", "cdist", "renorm", "logsumexp", "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d",
    "_upsample_nearest_exact2d", "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d",
    "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
    // norm has no list of its own in PyTorch; its accumulation is float32 as well.
    "norm.Scalar", "norm.ScalarOpt_dim",
};

// Reductions with a dtype argument: it becomes float32 unless the caller set it.
constexpr const char* kFloat32Result[] = {
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList",
};

// Several inputs that must agree: the widest of them.
constexpr const char* kPromote[] = {
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add",
};

bool eligible(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kNeuron && tensor.is_floating_point() &&
      tensor.scalar_type() != at::kDouble;
}

at::Tensor cast(const at::Tensor& tensor, at::ScalarType to) {
  return eligible(tensor) ? at::autocast::cached_cast(to, tensor, kNeuron) : tensor;
}

template <typename Visit>
void each_tensor(const IValue& value, Visit visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      visit(tensor);
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      if (tensor.has_value()) {
        visit(*tensor);
      }
    }
  }
}

void cast(IValue& value, at::ScalarType to) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      value = IValue(cast(value.toTensor(), to));
    }
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorList()) {
      list.push_back(cast(tensor, to));
    }
    value = IValue(std::move(list));
  }
}

void call_with(const c10::OperatorHandle& op, torch::jit::Stack* stack, at::ScalarType to) {
  const auto first = stack->size() - op.schema().arguments().size();
  for (size_t i = first; i < stack->size(); ++i) {
    cast((*stack)[i], to);
  }
  op.callBoxed(stack);
}

using NoAutocast = c10::impl::ExcludeDispatchKeyGuard;
const auto kKey = c10::DispatchKey::AutocastPrivateUse1;

void lower_precision(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  NoAutocast guard(kKey);
  call_with(op, stack, at::autocast::get_autocast_dtype(kNeuron));
}

void float32(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  NoAutocast guard(kKey);
  call_with(op, stack, at::kFloat);
}

void float32_result(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  NoAutocast guard(kKey);
  const auto& arguments = op.schema().arguments();
  const auto first = stack->size() - arguments.size();
  if ((*stack)[first].isTensor() && eligible((*stack)[first].toTensor())) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      auto& value = (*stack)[first + i];
      if (value.isNone() && arguments[i].name() == "dtype") {
        value = IValue(static_cast<int64_t>(at::kFloat));
      }
    }
  }
  op.callBoxed(stack);
}

void promote(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  NoAutocast guard(kKey);
  auto widest = at::autocast::get_autocast_dtype(kNeuron);
  const auto first = stack->size() - op.schema().arguments().size();
  for (size_t i = first; i < stack->size(); ++i) {
    each_tensor((*stack)[i], [&](const at::Tensor& tensor) {
      if (eligible(tensor) && tensor.scalar_type() == at::kFloat) {
        widest = at::kFloat;
      }
    });
  }
  call_with(op, stack, widest);
}

at::Tensor refuse_binary_cross_entropy(
    const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, int64_t) {
  TORCH_CHECK(
      false,
      "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. Combine the sigmoid with the "
      "loss (torch.nn.functional.binary_cross_entropy_with_logits), or leave autocast for this call.");
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  for (const auto* name : kLowerPrecision) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&lower_precision>());
  }
  for (const auto* name : kFloat32) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&float32>());
  }
  for (const auto* name : kFloat32Result) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&float32_result>());
  }
  for (const auto* name : kPromote) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&promote>());
  }
  m.impl("binary_cross_entropy", &refuse_binary_cross_entropy);
}

} // namespace
} // namespace neuron_lab
