// Dropout is the one random operator that takes no generator; this is the
// CPU's formula for a generator that is given.
#include "dropout.h"

#include "fallback.h"
#include "generator.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <torch/library.h>

namespace neuron_lab {

std::tuple<at::Tensor, at::Tensor> dropout(
    const at::Tensor& input, double p, std::optional<bool> train, const at::Generator& generator) {
  if (input.numel() == 0) {
    return {input, at::empty_like(input)};
  }
  const auto as_mask = input.options().dtype(at::kBool);
  if (!train.value_or(true)) {
    return {input.clone(), at::ones_like(input, as_mask)};
  }
  const double kept = 1.0 - p;
  auto mask = at::empty_like(input, as_mask);
  mask.bernoulli_(kept, generator);
  auto output = input.mul(mask).mul_(kept == 0.0 ? 0.0 : 1.0 / kept);
  return {std::move(output), std::move(mask)};
}

namespace {

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  static auto& traits = traits_of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::native_dropout", ""));
  touch();
  note(traits);
  const auto core = input.device().index();
  KernelScope scope(core);
  auto [output, mask] = dropout(borrow(input), p, train, cpu_generator_of(core));
  if (input.numel() == 0) {
    return {input, hand_over(std::move(mask), core)};
  }
  return {hand_over(std::move(output), core), hand_over(std::move(mask), core)};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_dropout", &native_dropout);
}

} // namespace
} // namespace neuron_lab
