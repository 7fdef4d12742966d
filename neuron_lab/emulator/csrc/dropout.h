// Dropout with a generator that is given.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace neuron_lab {

// Input and mask lie on the generator's device.
std::tuple<at::Tensor, at::Tensor> dropout(
    const at::Tensor& input, double p, std::optional<bool> train, const at::Generator& generator);

} // namespace neuron_lab
