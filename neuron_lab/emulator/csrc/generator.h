// Random numbers: one generator per core, each around a CPU generator of its own.
#pragma once

#include "runtime.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

namespace neuron_lab {

const at::Generator& default_generator(c10::DeviceIndex core);
// Without the check of what this rank may use: seeding reaches every core.
const at::Generator& default_generator_of_any_rank(c10::DeviceIndex core);
at::Generator new_generator(c10::DeviceIndex core);

// The CPU generator inside a generator of the device; any other one as it is.
at::Generator cpu_generator(const at::Generator& generator);
at::Generator cpu_generator_of(c10::DeviceIndex core);

// While one lives, PyTorch's default CPU generator continues the sequence of
// `core`, for kernels that draw without taking a generator (dropout, graphs).
// The CPU's own sequence is put back untouched.
class BorrowedDefaultGenerator {
 public:
  explicit BorrowedDefaultGenerator(c10::DeviceIndex core);
  ~BorrowedDefaultGenerator();
  BorrowedDefaultGenerator(const BorrowedDefaultGenerator&) = delete;
  BorrowedDefaultGenerator& operator=(const BorrowedDefaultGenerator&) = delete;

 private:
  c10::DeviceIndex core_;
  c10::intrusive_ptr<c10::TensorImpl> before_;
};

} // namespace neuron_lab
