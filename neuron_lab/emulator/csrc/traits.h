// What has to be known of an operator before its CPU kernel may run for a core.
#pragma once

#include "runtime.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/ScalarType.h>

#include <atomic>
#include <string>
#include <vector>

namespace neuron_lab {

struct OperatorTraits {
  std::string name;              // aten::add
  bool reported_fallback = false; // field reports saw the real backend run it on the CPU
  bool tensor_engine = false;    // a matrix product or a convolution
  bool takes_cpu_arguments = false; // CPU tensors beside device tensors are its convention
  uint64_t cpu_results = 0;      // results that stay on the CPU, as bits
  std::atomic<bool> executed{false};
  std::atomic<bool> warned{false};
};

OperatorTraits& traits_of(const c10::OperatorHandle& op);

// Notes that an operator ran, warns once where the real backend is reported to
// fall back to the CPU, and refuses what the device refuses.
void note(OperatorTraits& traits);
void refuse_float64(const OperatorTraits& traits, c10::ScalarType dtype);

// Names of the operators that ran since the last clear_tracking().
std::vector<std::string> executed_operators();
std::vector<std::string> fallback_operators();
void clear_tracking();

} // namespace neuron_lab
