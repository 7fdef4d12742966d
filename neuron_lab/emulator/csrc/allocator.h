// HBM, emulated: host memory that is counted per core and limited per bank.
//
// The device allocator serves `empty` and `resize_`. A gate before PyTorch's
// CPU allocator looks at what a CPU kernel asks for while it works for a core,
// and refuses what would not fit; what the kernel returns is counted when it is
// taken over. The pinned allocator knows which host memory it has pinned.
#pragma once

#include "runtime.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StorageImpl.h>

#include <atomic>

namespace neuron_lab {

// One counted piece of memory. It is the context of the device's DataPtr, owns
// the host memory, and keeps the CPU view of its bytes so that an operator does
// not have to build one per argument.
struct Block {
  c10::DataPtr memory;
  size_t counted; // bytes after rounding
  c10::DeviceIndex core;
  std::atomic<c10::StorageImpl*> cpu_view{nullptr};
};

void free_block(void* context);

// The block behind a DataPtr, or nullptr for memory that is not counted.
inline Block* block_of(const c10::DataPtr& data) {
  return data.get_deleter() == &free_block ? static_cast<Block*>(data.get_context()) : nullptr;
}

// Counts host memory of `bytes` as `core`'s, or throws the out-of-memory error
// and leaves `memory` where it is.
c10::DataPtr take_memory(c10::DataPtr&& memory, size_t bytes, c10::DeviceIndex core);

c10::DeviceAllocator* device_allocator();
c10::Allocator* pinned_allocator();
bool is_pinned(const void* data);

// Installs the device allocator, and the gate before PyTorch's CPU allocator.
void install_allocators();

// While one lives, what this thread asks of the CPU allocator has to fit into
// the HBM of `core` (-1: no limit).
class KernelScope {
 public:
  explicit KernelScope(c10::DeviceIndex core);
  ~KernelScope();
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

 private:
  int before_;
};

} // namespace neuron_lab
