// Current device, streams and events, as PyTorch's device guard wants them.
//
// The emulated core works synchronously: a stream is an identity without a
// queue, an event is the host time of its record. (Field reports say that on
// the real device, too, an event's elapsed_time compares host record times.)
#include "runtime.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <chrono>
#include <map>

namespace neuron_lab {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;
using Clock = std::chrono::steady_clock;

struct Event {
  Clock::time_point recorded;
};

std::atomic<int64_t> g_next_stream{1};
thread_local std::map<DeviceIndex, c10::StreamId> tls_streams;

struct NeuronGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kNeuron;
  }
  Device exchangeDevice(Device device) const override {
    if (device.index() >= 0) {
      resolve_core(device.index());
    }
    return {kNeuron, exchange_core(device.index())};
  }
  Device getDevice() const override {
    return {kNeuron, current_core()};
  }
  void setDevice(Device device) const override {
    if (device.index() >= 0) {
      set_current_core(resolve_core(device.index()));
    }
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    exchange_core(device.index());
  }
  Stream getStream(Device device) const noexcept override {
    const auto core = device.index() < 0 ? current_core() : device.index();
    const auto found = tls_streams.find(core);
    return Stream(Stream::UNSAFE, Device(kNeuron, core), found == tls_streams.end() ? 0 : found->second);
  }
  Stream getDefaultStream(Device device) const override {
    return Stream(Stream::DEFAULT, resolve(device));
  }
  Stream getStreamFromGlobalPool(Device device, bool) const override {
    return getNewStream(device, 0);
  }
  Stream getNewStream(Device device, int) const override {
    return Stream(Stream::UNSAFE, resolve(device), g_next_stream.fetch_add(1));
  }
  Stream exchangeStream(Stream stream) const noexcept override {
    const auto before = getStream(stream.device());
    tls_streams[stream.device_index()] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const Stream stream) const override {
    return reinterpret_cast<void*>(static_cast<intptr_t>(stream.id()));
  }
  DeviceIndex deviceCount() const noexcept override {
    return static_cast<DeviceIndex>(config().cores);
  }
  // Types that tensors of the device may have. Which ones the real device has is not documented.
  c10::DeviceCapability getDeviceCapability(Device) const override {
    c10::DeviceCapability all;
    auto& types = all.capability_data.supported_scalar_types;
    types.has_QInt8 = types.has_QUInt8 = types.has_QInt32 = types.has_QUInt4x2 = types.has_QUInt2x4 = false;
    return all;
  }
  void record(void** event, const Stream&, const DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Event;
    }
    static_cast<Event*>(*event)->recorded = Clock::now();
  }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  bool queryStream(const Stream&) const override {
    return true;
  }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const DeviceIndex core) const override {
    resolve_core(core);
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
  double elapsedTime(void* from, void* to, const DeviceIndex) const override {
    TORCH_CHECK(
        from != nullptr && to != nullptr, "neuron: both events must be recorded before their elapsed time can be read");
    const std::chrono::duration<double, std::milli> span =
        static_cast<Event*>(to)->recorded - static_cast<Event*>(from)->recorded;
    return span.count();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, NeuronGuard);

} // namespace
} // namespace neuron_lab
