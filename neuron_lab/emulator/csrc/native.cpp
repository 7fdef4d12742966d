// Operators that the device must answer itself: allocation, views, storages,
// copies, and the few for which no CPU kernel exists.
#include "fallback.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/ATen_fwd.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>

namespace neuron_lab {
namespace {

using at::IntArrayRef;
using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using OptionalDtype = std::optional<c10::ScalarType>;
using OptionalLayout = std::optional<c10::Layout>;
using OptionalDevice = std::optional<c10::Device>;
using OptionalFormat = std::optional<c10::MemoryFormat>;

// Allocation goes to the core that is current; this makes it the one asked for.
struct OnCore {
  c10::DeviceIndex before;
  explicit OnCore(OptionalDevice device)
      : before(exchange_core(resolve_core(device.has_value() ? device->index() : c10::DeviceIndex(-1)))) {}
  ~OnCore() {
    exchange_core(before);
  }
};

void check_factory(OptionalLayout layout, std::optional<bool> pinned) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !layout.has_value() || *layout == c10::kStrided,
      "The emulated neuron device makes strided tensors only, asked for was layout ", *layout);
  TORCH_CHECK(!pinned.value_or(false), "Only CPU tensors can be pinned; this one is to live on neuron");
}

c10::ScalarType dtype_of(OptionalDtype dtype) {
  return dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype()));
}

bool fill_uninitialized() {
  const auto& context = at::globalContext();
  return context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory();
}

// Under deterministic algorithms fresh memory holds NaN, as on every device.
Tensor fresh(Tensor tensor) {
  if (C10_UNLIKELY(fill_uninitialized())) {
    at::native::fill_empty_deterministic_(tensor);
  }
  return tensor;
}

Tensor empty_memory_format(
    IntArrayRef size, OptionalDtype dtype, OptionalLayout layout, OptionalDevice device, std::optional<bool> pinned,
    OptionalFormat format) {
  check_factory(layout, pinned);
  OnCore core(device);
  return fresh(at::detail::empty_generic(
      size, device_allocator(), DispatchKeySet(DispatchKey::PrivateUse1), dtype_of(dtype), format));
}

// In one go: as an allocation and a fill it would pass through the dispatcher twice more.
Tensor zeros(
    IntArrayRef size, OptionalDtype dtype, OptionalLayout layout, OptionalDevice device, std::optional<bool> pinned) {
  static auto& traits = traits_of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::zeros", ""));
  touch();
  note(traits);
  auto out = empty_memory_format(size, dtype, layout, device, pinned, std::nullopt);
  if (out.nbytes() > 0) {
    std::memset(out.mutable_data_ptr(), 0, out.nbytes()); // zero in every dtype
  }
  return out;
}

Tensor empty_strided(
    IntArrayRef size, IntArrayRef stride, OptionalDtype dtype, OptionalLayout layout, OptionalDevice device,
    std::optional<bool> pinned) {
  check_factory(layout, pinned);
  OnCore core(device);
  return fresh(at::detail::empty_strided_generic(
      size, stride, device_allocator(), DispatchKeySet(DispatchKey::PrivateUse1), dtype_of(dtype)));
}

// A tensor of zeros without memory, which forward-mode differentiation uses.
Tensor efficient_zero_tensor(
    IntArrayRef size, OptionalDtype dtype, OptionalLayout, OptionalDevice device, std::optional<bool>) {
  at::native::ZeroTensorAllocator allocator(
      c10::Device(kNeuron, resolve_core(device.has_value() ? device->index() : c10::DeviceIndex(-1))));
  const auto keys = DispatchKeySet(DispatchKey::PrivateUse1) | DispatchKeySet(DispatchKey::ZeroTensor);
  return at::detail::empty_generic(size, &allocator, keys, dtype_of(dtype), std::nullopt);
}

// Between the CPU and a core, or between two cores. `borrow` carries the
// conjugate, negative and zero bits, so the CPU's copy does the right thing.
Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  touch();
  auto source = on_neuron(from) ? borrow(from) : from;
  auto target = on_neuron(to) ? borrow(to) : to;
  target.copy_(source, non_blocking);
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

c10::Scalar local_scalar_dense(const Tensor& self) {
  touch();
  return borrow(self).item();
}

Tensor as_strided(const Tensor& self, IntArrayRef size, IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

Tensor view(const Tensor& self, IntArrayRef size) {
  return at::native::view(self, size);
}

Tensor reshape_alias(const Tensor& self, IntArrayRef size, IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

void grow(const c10::Storage& storage, size_t bytes) {
  if (bytes > storage.nbytes()) {
    TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
    at::globalContext().lazyInitDevice(kNeuron);
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(storage, bytes);
  }
}

const Tensor& resize(const Tensor& self, IntArrayRef size, OptionalFormat format) {
  auto* impl = self.unsafeGetTensorImpl();
  if (self.sizes() != size) {
    const auto before = self.storage().nbytes();
    // Memory first: refused, it leaves the tensor as it was.
    grow(
        self.storage(),
        at::detail::computeStorageNbytesContiguous(
            size, impl->itemsize(), static_cast<size_t>(impl->storage_offset())));
    impl->set_sizes_contiguous(size);
    if (C10_UNLIKELY(fill_uninitialized())) {
      at::native::fill_resize_deterministic_(self, static_cast<int64_t>(before));
    }
  }
  if (format.has_value()) {
    TORCH_CHECK(
        *format != c10::MemoryFormat::Preserve, "Unsupported memory format", *format);
    impl->empty_tensor_restride(*format);
  }
  return self;
}

Tensor& set_source(Tensor& self, c10::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  const bool strided = stride.data() != nullptr && stride.size() == size.size();
  const auto bytes = strided
      ? at::detail::computeStorageNbytes(size, stride, impl->itemsize(), offset)
      : at::detail::computeStorageNbytesContiguous(size, impl->itemsize(), static_cast<size_t>(offset));
  if (c10::multiply_integers(size) > 0 && source.device().type() == kNeuron) { // else refused below
    grow(source, bytes); // memory first: refused, it leaves the tensor as it was
  }
  at::native::checkSetStorage(self, std::move(source), offset, size, stride);
  impl->set_storage_offset(offset);
  if (strided) {
    impl->set_sizes_and_strides(size, stride);
  } else {
    impl->set_sizes_contiguous(size);
  }
  return self;
}

Tensor& set_storage(Tensor& self, c10::Storage source) {
  const auto items = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_source(self, std::move(source), 0, {items}, {});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  if (self.unsafeGetTensorImpl() == source.unsafeGetTensorImpl()) {
    return self;
  }
  return set_source(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_empty(Tensor& self) {
  OnCore core(self.device());
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), 0, device_allocator()->allocate(0), device_allocator(), /*resizable=*/true);
  return set_source(self, std::move(storage), 0, {0}, {});
}

// Keeps nn.TransformerEncoder off its nested-tensor path, which PyTorch offers every out-of-tree device.
bool nested_tensor_from_mask_left_aligned(const Tensor&, const Tensor&) {
  return false;
}

void record_stream(Tensor&, c10::Stream) {} // streams run in program order

// What `Module.to` asks before it moves a parameter in place. PyTorch's default
// says no for an out-of-tree device and then makes new Parameters: tied weights
// come apart and optimizers keep the old ones, silently. Both are plain strided
// tensors, so the answer is yes, as it is between the CPU and CUDA.
bool has_compatible_shallow_copy_type(const Tensor& self, const Tensor& from) {
  const auto plain = [](const Tensor& t) {
    return t.layout() == c10::kStrided && !t.is_quantized() &&
        (t.device().type() == kNeuron || t.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(DispatchKeySet(
             {DispatchKey::Dense, DispatchKey::CPU})));
  };
  return plain(self) && plain(from);
}

// Integer counts: an accelerator has them, the CPU kernel does not, and
// mixture-of-experts code calls them on every accelerator. Exact up to 2^53.
Tensor histc(const Tensor& self, int64_t bins, const c10::Scalar& min, const c10::Scalar& max) {
  static auto& traits = traits_of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::histc", ""));
  touch();
  note(traits);
  const auto input = borrow(self);
  KernelScope scope(self.device().index());
  if (!at::isIntegralType(self.scalar_type(), /*includeBool=*/false)) {
    return hand_over(at::histc(input, bins, min, max), self.device().index());
  }
  return hand_over(
      at::histc(input.to(at::kDouble), bins, min, max).to(self.scalar_type()), self.device().index());
}

Tensor& histc_out(const Tensor& self, int64_t bins, const c10::Scalar& min, const c10::Scalar& max, Tensor& out) {
  const auto counts = neuron_lab::histc(self, bins, min, max);
  at::native::resize_output(out, counts.sizes());
  return out.copy_(counts);
}

// Reached only by a direct call of torch._convolution: convolution itself has the boxed kernel.
Tensor convolution_overrideable(
    const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
    c10::SymInt groups) {
  return at::convolution_symint(
      input, weight, bias, stride, padding, dilation, transposed, output_padding, std::move(groups));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward_overrideable(
    const Tensor& grad, const Tensor& input, const Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
    c10::SymInt groups, std::array<bool, 3> mask) {
  const std::vector<c10::SymInt> bias = {transposed ? weight.sym_size(1) * groups : weight.sym_size(0)};
  return at::convolution_backward_symint(
      grad, input, weight, c10::SymIntArrayRef(bias), stride, padding, dilation, transposed, output_padding, groups, mask);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty_memory_format);
  m.impl("empty_strided", &empty_strided);
  m.impl("zeros", &zeros);
  m.impl("_efficientzerotensor", &efficient_zero_tensor);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage_storage_offset", &set_source);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_", &set_empty);
  m.impl("record_stream", &record_stream);
  m.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
  m.impl("_nested_tensor_from_mask_left_aligned", &nested_tensor_from_mask_left_aligned);
  m.impl("histc", &histc);
  m.impl("histc.out", &histc_out);
  m.impl("convolution_overrideable", &convolution_overrideable);
  m.impl("convolution_backward_overrideable", &convolution_backward_overrideable);
}

// The copy reads these bits itself; resolving them first would copy, and so on for ever.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, ZeroTensor, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

} // namespace
} // namespace neuron_lab
