#include "generator.h"

#include "position.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Utils.h>

#include <cstring>
#include <mutex>
#include <vector>

namespace neuron_lab {
namespace {

// PyTorch's CPU generator (mt19937) under the device's name. Its algorithm is
// not documented for the real backend, so equality with the CPU's numbers is a
// property of the emulator only. Its state is a seed and an offset, as that of
// other accelerators, since PyTorch counts on it.
struct NeuronGenerator final : c10::GeneratorImpl {
  at::Generator host;

  NeuronGenerator(c10::DeviceIndex core, at::Generator cpu)
      : GeneratorImpl(c10::Device(kNeuron, core), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host(std::move(cpu)),
        tracker_(impl()) {}

  void set_current_seed(uint64_t seed) override {
    const auto lock = locked(); // a kernel of another thread may be drawing
    impl().set_current_seed(seed);
    tracker_.restart(impl());
  }
  void set_offset(uint64_t offset) override {
    const auto lock = locked();
    tracker_.move(impl(), {impl().current_seed(), offset});
  }
  uint64_t get_offset() const override {
    return position().offset;
  }
  uint64_t current_seed() const override {
    return host.current_seed();
  }
  uint64_t seed() override {
    const auto random = c10::detail::getNonDeterministicRandom();
    set_current_seed(random);
    return random;
  }
  void set_state(const c10::TensorImpl& state) override {
    const auto bytes = static_cast<int64_t>(sizeof(Position));
    TORCH_CHECK(
        state.numel() == bytes && state.dtype() == caffe2::TypeMeta::Make<uint8_t>() && state.is_cpu() && state.is_contiguous(),
        "The state of a neuron generator is a CPU tensor of ", bytes, " bytes (uint8): seed and offset. Got ",
        state.numel(), " values of ", state.dtype(), " on ", state.device(),
        ". Set what get_state() or torch.neuron.get_rng_state() returned; a generator of the CPU has a state of another kind.");
    Position to;
    std::memcpy(&to, state.data(), sizeof(to));
    const auto lock = locked();
    tracker_.move(impl(), to);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const auto here = position();
    // Not by the dispatcher: under a tracing mode it would make a tensor without memory.
    auto state = at::detail::empty_cpu({static_cast<int64_t>(sizeof(here))}, at::kByte);
    std::memcpy(state.mutable_data_ptr(), &here, sizeof(here));
    return state.getIntrusivePtr();
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    return clone();
  }
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) override {
    const auto* from = dynamic_cast<NeuronGenerator*>(state.get());
    TORCH_CHECK(from != nullptr, "neuron: graphsafe_set_state needs a generator of the neuron device");
    const auto to = from->position();
    const auto lock = locked();
    tracker_.move(impl(), to);
  }

 private:
  // In a forked child, a thread that is not there may hold it for ever.
  std::unique_lock<std::mutex> locked() const {
    refuse_after_fork();
    return std::unique_lock<std::mutex>(impl().mutex_);
  }
  at::CPUGeneratorImpl& impl() const {
    return *static_cast<at::CPUGeneratorImpl*>(host.unsafeGetGeneratorImpl());
  }
  Position position() const {
    const auto lock = locked();
    return tracker_.position(impl());
  }
  NeuronGenerator* clone_impl() const override {
    const auto here = position();
    auto* copy = new NeuronGenerator(device().index(), at::detail::createCPUGenerator());
    copy->tracker_ = tracker_;
    copy->tracker_.move(copy->impl(), here);
    return copy;
  }

  mutable PositionTracker tracker_;
};

} // namespace

at::Generator new_generator(c10::DeviceIndex core) {
  return at::make_generator<NeuronGenerator>(resolve_core(core), at::detail::createCPUGenerator());
}

const at::Generator& default_generator(c10::DeviceIndex core) {
  return default_generator_of_any_rank(resolve_core(core));
}

const at::Generator& default_generator_of_any_rank(c10::DeviceIndex core) {
  static auto* generators = new std::vector<at::Generator>;
  static auto& mutex = *[] {
    auto* made = new std::mutex;
    hold_at_fork(*made);
    return made;
  }();
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

} // namespace neuron_lab
