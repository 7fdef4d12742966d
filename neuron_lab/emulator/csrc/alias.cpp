#include "alias.h"

#include <ATen/core/ScalarType.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>

namespace neuron_lab {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

const DispatchKeySet kBits({DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor});

c10::intrusive_ptr<c10::StorageImpl> cpu_storage(c10::DataPtr data, size_t bytes) {
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), c10::GetCPUAllocator(), /*resizable=*/true);
}

struct Keep {
  c10::intrusive_ptr<c10::StorageImpl> storage;
};

void free_keep(void* context) {
  delete static_cast<Keep*>(context);
}

c10::intrusive_ptr<c10::StorageImpl> owning_view(const at::Tensor& tensor) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  auto held = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage);
  void* data = storage->mutable_data();
  return cpu_storage({data, new Keep{std::move(held)}, &free_keep, c10::Device(c10::kCPU)}, storage->nbytes());
}

// The CPU view that a block keeps. Made on first use; two threads may race, and
// the one that comes second throws its own away.
c10::intrusive_ptr<c10::StorageImpl> shared_view(Block& block, size_t bytes) {
  auto* view = block.cpu_view.load(std::memory_order_acquire);
  if (view == nullptr) {
    auto made = cpu_storage({block.memory.mutable_get(), c10::Device(c10::kCPU)}, bytes);
    auto* candidate = made.release();
    if (block.cpu_view.compare_exchange_strong(view, candidate, std::memory_order_acq_rel)) {
      view = candidate;
    } else {
      c10::intrusive_ptr<c10::StorageImpl>::reclaim(candidate);
    }
  }
  return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(view);
}

at::Tensor over(c10::intrusive_ptr<c10::StorageImpl> storage, const at::Tensor& tensor) {
  const auto keys = DispatchKeySet(DispatchKey::CPU) | (tensor.key_set() & kBits);
  auto out = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), keys, tensor.dtype());
  auto* to = out.unsafeGetTensorImpl();
  const auto* from = tensor.unsafeGetTensorImpl();
  to->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset());
  return out;
}

void check_layout(const at::Tensor& result) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      result.layout() == c10::kStrided && !result.is_quantized() && !result.is_nested(),
      "The emulated neuron device holds dense, strided tensors only; the result of this operator is ",
      result.is_quantized() ? "quantized" : result.is_nested() ? "nested" : "sparse",
      ". Whether TorchNeuron supports such tensors is not documented. Make it on the CPU (tensor.cpu()), "
      "and move a dense tensor to the device.");
}

} // namespace

at::Tensor borrow(const at::Tensor& tensor) {
  const auto& storage = *tensor.storage().unsafeGetStorageImpl();
  auto* block = block_of(storage.data_ptr());
  return over(block ? shared_view(*block, storage.nbytes()) : owning_view(tensor), tensor);
}

at::Tensor alias(const at::Tensor& tensor) {
  return over(owning_view(tensor), tensor);
}

at::Tensor view_on(const at::Tensor& base, const at::Tensor& view) {
  auto keys = base.key_set();
  for (auto bit : {DispatchKey::Conjugate, DispatchKey::Negative}) {
    keys = view.key_set().has(bit) ? keys.add(bit) : keys.remove(bit);
  }
  auto out = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(base.storage()), keys, view.dtype());
  out.unsafeGetTensorImpl()->set_sizes_and_strides(view.sizes(), view.strides(), view.storage_offset());
  return out;
}

at::Tensor hand_over(at::Tensor result, c10::DeviceIndex core, size_t references) {
  check_layout(result);
  const c10::Device device(kNeuron, core);
  auto* storage = result.storage().unsafeGetStorageImpl();
  auto* impl = result.unsafeGetTensorImpl();
  const auto bytes = storage->nbytes();
  if (storage->data_ptr().get_deleter() == &free_keep) { // an alias: the tensor of the device that it stands for
    auto& own = static_cast<Keep*>(storage->data_ptr().get_context())->storage;
    if (own->device_type() == kNeuron) {
      auto out = at::detail::make_tensor<c10::TensorImpl>(
          c10::Storage(own), DispatchKeySet(DispatchKey::PrivateUse1) | (result.key_set() & kBits), result.dtype());
      out.unsafeGetTensorImpl()->set_sizes_and_strides(impl->sizes(), impl->strides(), impl->storage_offset());
      return out;
    }
  }
  if (result.use_count() <= references) {
    if (storage->device_type() == c10::kCPU) { // not yet: results of one operator may share a storage
      storage->mutable_data(); // materializes a lazy copy before its memory is taken
      auto taken = take_memory(std::move(storage->_mutable_data_ptr_no_checks()), bytes, core);
      storage->set_data_ptr_noswap(std::move(taken));
      storage->set_allocator(device_allocator());
    }
    impl->_change_backend_component_keys(device);
    impl->set_storage_keep_dtype(result.storage()); // takes the device along
    return result;
  }
  auto held = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage);
  void* data = storage->mutable_data();
  c10::DataPtr memory(data, new Keep{std::move(held)}, &free_keep, c10::Device(c10::kCPU));
  auto out = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(
          c10::Storage::use_byte_size_t(), bytes, take_memory(std::move(memory), bytes, core), device_allocator(), true),
      DispatchKeySet(DispatchKey::PrivateUse1) | (result.key_set() & kBits), result.dtype());
  out.unsafeGetTensorImpl()->set_sizes_and_strides(impl->sizes(), impl->strides(), impl->storage_offset());
  return out;
}

at::Tensor on_device(const at::Tensor& cpu, int64_t core) {
  if (!cpu.defined() || cpu.device().type() != c10::kCPU) {
    return cpu;
  }
  auto* storage = cpu.storage().unsafeGetStorageImpl();
  auto held = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage);
  void* data = storage->mutable_data();
  c10::DataPtr bytes(data, new Keep{std::move(held)}, &free_keep, c10::Device(kNeuron, static_cast<c10::DeviceIndex>(core)));
  auto out = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::Storage::use_byte_size_t(), storage->nbytes(), std::move(bytes), device_allocator(), true),
      DispatchKeySet(DispatchKey::PrivateUse1) | (cpu.key_set() & kBits), cpu.dtype());
  out.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
  return out;
}

void write_back(const at::Tensor& borrowed, const at::Tensor& tensor) {
  auto* seen = borrowed.storage().unsafeGetStorageImpl();
  auto* own = tensor.storage().unsafeGetStorageImpl();
  const auto* made = borrowed.unsafeGetTensorImpl();
  auto* impl = tensor.unsafeGetTensorImpl();
  if (seen->data() != own->data()) { // the kernel resized its output
    const auto bytes = seen->nbytes();
    auto taken = take_memory(std::move(seen->_mutable_data_ptr_no_checks()), bytes, tensor.device().index());
    own->set_data_ptr_noswap(std::move(taken)); // frees the old block, and `seen` with its owner
    own->set_nbytes(bytes);
  }
  if (made->sizes() != impl->sizes() || made->strides() != impl->strides() ||
      made->storage_offset() != impl->storage_offset()) {
    impl->set_sizes_and_strides(made->sizes(), made->strides(), made->storage_offset());
  }
  if (C10_UNLIKELY(made->is_conj() != impl->is_conj())) { // some kernels conjugate their output lazily
    impl->_set_conj(made->is_conj());
  }
  if (C10_UNLIKELY(made->is_neg() != impl->is_neg())) {
    impl->_set_neg(made->is_neg());
  }
}

} // namespace neuron_lab
