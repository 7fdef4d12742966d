// Random numbers: one generator per core, each around a CPU generator of its own.
#pragma once

#include "runtime.h"

#include <ATen/core/Generator.h>

namespace neuron_lab {

const at::Generator& default_generator(c10::DeviceIndex core);
// Without the check of what this rank may use: seeding reaches every core.
const at::Generator& default_generator_of_any_rank(c10::DeviceIndex core);
at::Generator new_generator(c10::DeviceIndex core);

// The CPU generator inside a generator of the device; any other one as it is.
at::Generator cpu_generator(const at::Generator& generator);
at::Generator cpu_generator_of(c10::DeviceIndex core);

} // namespace neuron_lab
