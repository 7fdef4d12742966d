#include "generator.h"

#include <ATen/Utils.h>

#include <mutex>
#include <vector>

namespace neuron_lab {
namespace {

// PyTorch's CPU generator (mt19937) under the device's name. Its algorithm is
// not documented for the real backend, so equality with the CPU's numbers is a
// property of the emulator only.
struct NeuronGenerator final : c10::GeneratorImpl {
  at::Generator host;

  NeuronGenerator(c10::DeviceIndex core, at::Generator cpu)
      : GeneratorImpl(c10::Device(kNeuron, core), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host(std::move(cpu)) {}

  void set_current_seed(uint64_t seed) override {
    host.set_current_seed(seed);
  }
  void set_offset(uint64_t offset) override {
    TORCH_CHECK(offset == 0, "The emulated neuron generator (mt19937) has no offset to set; use manual_seed or set_state");
  }
  uint64_t get_offset() const override {
    return 0; // asked for when a generator is copied or pickled
  }
  uint64_t current_seed() const override {
    return host.current_seed();
  }
  uint64_t seed() override {
    return host.seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    host.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host.unsafeGetGeneratorImpl()->get_state();
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    return c10::intrusive_ptr<c10::GeneratorImpl>::reclaim(clone_impl());
  }
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) override {
    const auto* from = dynamic_cast<NeuronGenerator*>(state.get());
    TORCH_CHECK(from != nullptr, "neuron: graphsafe_set_state needs a generator of the neuron device");
    host.unsafeGetGeneratorImpl()->set_state(*from->get_state());
  }

 private:
  NeuronGenerator* clone_impl() const override {
    return new NeuronGenerator(device().index(), host.clone());
  }
};

std::recursive_mutex g_borrow_mutex; // a kernel inside a graph that already borrowed

} // namespace

at::Generator new_generator(c10::DeviceIndex core) {
  return at::make_generator<NeuronGenerator>(resolve_core(core), at::detail::createCPUGenerator());
}

const at::Generator& default_generator(c10::DeviceIndex core) {
  return default_generator_of_any_rank(resolve_core(core));
}

const at::Generator& default_generator_of_any_rank(c10::DeviceIndex core) {
  static auto* generators = new std::vector<at::Generator>;
  static std::mutex mutex;
  const auto index = static_cast<size_t>(core);
  std::lock_guard<std::mutex> lock(mutex);
  if (generators->capacity() < kMaxCores) {
    generators->reserve(kMaxCores); // references stay valid
  }
  while (generators->size() <= index) {
    generators->push_back(at::make_generator<NeuronGenerator>(
        static_cast<c10::DeviceIndex>(generators->size()), at::detail::createCPUGenerator()));
  }
  return (*generators)[index];
}

at::Generator cpu_generator(const at::Generator& generator) {
  if (generator.defined() && generator.device().type() == kNeuron) {
    return static_cast<NeuronGenerator*>(generator.unsafeGetGeneratorImpl())->host;
  }
  return generator;
}

at::Generator cpu_generator_of(c10::DeviceIndex core) {
  return cpu_generator(default_generator(core));
}

BorrowedDefaultGenerator::BorrowedDefaultGenerator(c10::DeviceIndex core) : core_(core) {
  g_borrow_mutex.lock();
  auto host = at::detail::getDefaultCPUGenerator(); // a handle, not a copy
  const auto mine = cpu_generator_of(core_);
  std::lock_guard<std::mutex> lock(host.mutex());
  before_ = host.unsafeGetGeneratorImpl()->get_state();
  host.unsafeGetGeneratorImpl()->set_state(*mine.unsafeGetGeneratorImpl()->get_state());
}

BorrowedDefaultGenerator::~BorrowedDefaultGenerator() {
  {
    auto host = at::detail::getDefaultCPUGenerator(); // a handle, not a copy
    const auto mine = cpu_generator_of(core_);
    std::lock_guard<std::mutex> lock(host.mutex());
    mine.unsafeGetGeneratorImpl()->set_state(*host.unsafeGetGeneratorImpl()->get_state());
    host.unsafeGetGeneratorImpl()->set_state(*before_);
  }
  g_borrow_mutex.unlock();
}

} // namespace neuron_lab
