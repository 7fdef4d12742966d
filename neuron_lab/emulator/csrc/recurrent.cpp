// Fused LSTM and GRU cells. PyTorch's recurrent layers call them on every
// out-of-tree accelerator, and the CPU has none: its layers use other operators.
// Written with those, so that the results are the CPU's.
#include "runtime.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <torch/library.h>

namespace neuron_lab {
namespace {

using at::Tensor;
using Optional = std::optional<Tensor>;

Tensor with_bias(const Tensor& gates, const Optional& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}

Tensor side_by_side(const std::vector<Tensor>& parts) {
  return at::cat(parts, 1);
}

Tensor sigmoid_slope(const Tensor& y) {
  return y * (1 - y);
}

Tensor tanh_slope(const Tensor& y) {
  return 1 - y * y;
}

// Workspace: the activated gates (input, forget, cell, output) side by side.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(
    const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx, const Optional& input_bias,
    const Optional& hidden_bias) {
  const auto parts = (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
  const auto in = parts[0].sigmoid();
  const auto forget = parts[1].sigmoid();
  const auto cell = parts[2].tanh();
  const auto out = parts[3].sigmoid();
  auto cy = forget * cx + in * cell;
  auto hy = out * cy.tanh();
  return {std::move(hy), std::move(cy), side_by_side({in, forget, cell, out})};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(
    const Optional& grad_hy, const Optional& grad_cy, const Tensor& cx, const Tensor& cy, const Tensor& workspace,
    bool has_bias) {
  const bool from_h = grad_hy.has_value() && grad_hy->defined();
  const bool from_c = grad_cy.has_value() && grad_cy->defined();
  if (!from_h && !from_c) {
    return {};
  }
  const auto parts = workspace.chunk(4, 1);
  const auto& in = parts[0];
  const auto& forget = parts[1];
  const auto& cell = parts[2];
  const auto& out = parts[3];
  const auto squashed = cy.tanh();
  Tensor grad_c = from_c ? *grad_cy : Tensor();
  Tensor grad_out = out.new_zeros(out.sizes());
  if (from_h) {
    const auto through = *grad_hy * out * tanh_slope(squashed);
    grad_c = from_c ? grad_c + through : through;
    grad_out = *grad_hy * squashed * sigmoid_slope(out);
  }
  auto grad_gates = side_by_side(
      {grad_c * cell * sigmoid_slope(in), grad_c * cx * sigmoid_slope(forget), grad_c * in * tanh_slope(cell), grad_out});
  auto grad_bias = has_bias ? grad_gates.sum(0, /*keepdim=*/false) : Tensor();
  return {grad_gates, grad_c * forget, grad_bias};
}

// Workspace: reset, update, new, the previous state, and the hidden part of the new gate.
std::tuple<Tensor, Tensor> gru_cell(
    const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx, const Optional& input_bias,
    const Optional& hidden_bias) {
  const auto in = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const auto reset = (in[0] + hidden[0]).sigmoid();
  const auto update = (in[1] + hidden[1]).sigmoid();
  const auto fresh = (in[2] + reset * hidden[2]).tanh();
  return {(hx - fresh) * update + fresh, side_by_side({reset, update, fresh, hx, hidden[2]})};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(
    const Tensor& grad_hy, const Tensor& workspace, bool has_bias) {
  const auto parts = workspace.chunk(5, 1);
  const auto& reset = parts[0];
  const auto& update = parts[1];
  const auto& fresh = parts[2];
  const auto& hx = parts[3];
  const auto& hidden = parts[4];
  const auto grad_fresh = grad_hy * (1 - update) * tanh_slope(fresh);
  const auto grad_update = grad_hy * (hx - fresh) * sigmoid_slope(update);
  const auto grad_reset = grad_fresh * hidden * sigmoid_slope(reset);
  auto grad_in = side_by_side({grad_reset, grad_update, grad_fresh});
  auto grad_hidden = side_by_side({grad_reset, grad_update, grad_fresh * reset});
  auto in_bias = has_bias ? grad_in.sum(0, false) : Tensor();
  auto hidden_bias = has_bias ? grad_hidden.sum(0, false) : Tensor();
  return {grad_in, grad_hidden, grad_hy * update, in_bias, hidden_bias};
}

// Also for the CPU: a compiled graph of the device runs on CPU tensors.
void implement(torch::Library& m) {
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  implement(m);
}
TORCH_LIBRARY_IMPL(aten, CPU, m) {
  implement(m);
}

} // namespace
} // namespace neuron_lab
