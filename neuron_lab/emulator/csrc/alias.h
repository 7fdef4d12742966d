// Between the device's tensors and the CPU tensors over the same bytes.
//
// `borrow` is for the time of one kernel: it reuses the CPU view that the block
// keeps. `alias` owns its bytes and may be kept (compiled graphs, collectives).
// `hand_over` turns what a kernel made into a tensor of the device.
#pragma once

#include "allocator.h"

#include <ATen/core/Tensor.h>

namespace neuron_lab {

inline bool on_neuron(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kNeuron;
}

at::Tensor borrow(const at::Tensor& tensor);
at::Tensor alias(const at::Tensor& tensor);

// A tensor of the device with the geometry of `view`, over the storage of `base`.
at::Tensor view_on(const at::Tensor& base, const at::Tensor& view);

// A fresh CPU tensor becomes a tensor of `core`: changed in place if nobody
// but `references` holders knows it (a result from Python has two), else wrapped.
at::Tensor hand_over(at::Tensor result, c10::DeviceIndex core, size_t references = 1);

// A tensor of `core` over the bytes of a CPU tensor that an alias or a kernel
// made; the bytes are counted where they were allocated.
at::Tensor on_device(const at::Tensor& cpu, int64_t core);

// After a kernel wrote to `borrowed` (of `tensor`): takes over new memory and
// new geometry, as `out=` and `resize_` leave them.
void write_back(const at::Tensor& borrowed, const at::Tensor& tensor);

} // namespace neuron_lab
