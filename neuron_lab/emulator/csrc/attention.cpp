// scaled_dot_product_attention takes the CPU's own choice of kernel: flash
// attention where the CPU would, the composite formula elsewhere. Both stay
// differentiable and visible to torch.compile as ordinary operators.
#include "runtime.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/SDPBackend.h>
#include <torch/library.h>

#include <limits>

namespace neuron_lab {
namespace {

using at::Tensor;

// A boolean mask says what may be attended to; the kernels add a mask.
std::optional<Tensor> additive(const std::optional<Tensor>& mask, c10::ScalarType dtype) {
  if (!mask.has_value() || !mask->defined() || mask->scalar_type() != at::kBool) {
    return mask;
  }
  const auto options = mask->options().dtype(dtype);
  return at::where(
      *mask, at::scalar_tensor(0.0, options), at::scalar_tensor(-std::numeric_limits<double>::infinity(), options));
}

Tensor scaled_dot_product_attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask, double dropout,
    bool causal, std::optional<double> scale, bool grouped) {
  const auto choice = at::native::_fused_sdp_choice_cpp(query, key, value, mask, dropout, causal, scale, grouped);
  if (choice == static_cast<int64_t>(at::SDPBackend::flash_attention)) {
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout, causal, additive(mask, query.scalar_type()), scale));
  }
  return std::get<0>(at::_scaled_dot_product_attention_math(
      query, key, value, additive(mask, query.scalar_type()), dropout, causal, std::nullopt, scale, grouped));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("scaled_dot_product_attention", &scaled_dot_product_attention);
}
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("scaled_dot_product_attention", &scaled_dot_product_attention);
}

} // namespace
} // namespace neuron_lab
