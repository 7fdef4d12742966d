#include "hooks.h"

#include "allocator.h"
#include "generator.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Storage.h>

#include <cstring>

namespace neuron_lab {
namespace {

struct NeuronHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return config().cores > 0;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  void init() const override {
    touch();
  }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(config().cores);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current_core();
  }
  void setCurrentDevice(c10::DeviceIndex core) const override {
    set_current_core(resolve_core(core));
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex core) const override {
    return exchange_core(resolve_core(core));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex core) const override {
    return exchange_core(core < 0 ? core : resolve_core(core));
  }
  bool isPinnedPtr(const void* data) const override {
    return is_pinned(data);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return pinned_allocator();
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex core) const override {
    return default_generator(core);
  }
  at::Generator getNewGenerator(c10::DeviceIndex core) const override {
    return new_generator(core);
  }
  // FSDP2 frees and restores parameter storages through this.
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    const auto before = exchange_core(storage.device().index());
    c10::DataPtr data;
    try {
      data = device_allocator()->allocate(bytes);
    } catch (...) {
      exchange_core(before);
      throw;
    }
    exchange_core(before);
    if (const auto kept = std::min(bytes, impl->nbytes()); kept > 0 && impl->data() != nullptr) {
      std::memcpy(data.get(), impl->data(), kept);
    }
    impl->set_data_ptr_noswap(std::move(data));
    impl->set_nbytes(bytes);
  }
};

} // namespace

void register_hooks() {
  static auto* hooks = new NeuronHooks;
  at::RegisterPrivateUse1HooksInterface(hooks);
}

} // namespace neuron_lab
