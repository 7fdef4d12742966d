// Operators: the CPU kernel, over the same bytes.
#pragma once

#include "alias.h"
#include "traits.h"

#include <ATen/core/stack.h>

#include <string>

namespace neuron_lab {

// The boxed kernel: borrow the arguments, run the CPU kernel, hand over the results.
void run_on_cpu(OperatorTraits& traits, const c10::OperatorHandle& op, torch::jit::Stack* stack);

[[noreturn]] void mixed_devices(const std::string& op, c10::Device one, c10::Device other);

// The last part of the library's set-up: gives every operator that has a CPU
// kernel (and every foreach operator) the boxed kernel above, except `native`.
void register_cpu_kernels();

} // namespace neuron_lab
