// The emulated machine: how many NeuronCores there are, which one a thread
// works on, how much HBM each has, and who may still touch them (fork, rank).
#pragma once

#include <c10/core/Device.h>
#include <c10/macros/Macros.h>

#include <cstddef>
#include <mutex>
#include <string>

namespace neuron_lab {

constexpr c10::DeviceType kNeuron = c10::DeviceType::PrivateUse1;
constexpr int kMaxCores = 127; // PyTorch's device index is one signed byte

struct Config {
  int cores = 0;             // logical cores this process may use
  size_t hbm_bytes = 0;      // capacity of one HBM bank
  int cores_per_bank = 1;    // 2 at LNC=1: two cores share one bank
  int start_core = 0;        // the core that this process begins on (LOCAL_RANK)
  bool refuse_float64 = true;
  bool refuse_fallback = false; // NEURON_FALLBACK_ENABLED=0
  std::string problem;       // set when the environment variables make no sense
};

// Called once, when the module is loaded. `configure` may be called again only
// by the tests of the emulator itself.
void configure(const Config& config);
const Config& config();

// Throws with the reason when the device cannot be used in this process, and
// otherwise notes that it has been touched.
void touch();
bool touched();
bool in_bad_fork();
void refuse_after_fork(); // the first of touch's reasons alone

// For a lock that is held for moments only. It is taken around fork: a child
// would find it locked for ever by a thread that it does not have.
void hold_at_fork(std::mutex& mutex);

// Index of the core that the calling thread works on. Threads that never chose
// one follow the main thread, as a factory without an index must.
c10::DeviceIndex current_core();
void set_current_core(c10::DeviceIndex index);
c10::DeviceIndex exchange_core(c10::DeviceIndex index); // negative: no change

// Checked index: a missing one becomes the current core, a wrong one throws
// with the range that would be right.
c10::DeviceIndex resolve_core(c10::DeviceIndex index);
inline c10::Device resolve(c10::Device device) {
  return {kNeuron, resolve_core(device.index())};
}

// After `init_process_group("neuron")` a rank owns one core (its LOCAL_RANK)
// and no other index is valid in it. -1 lifts the restriction.
void restrict_to(c10::DeviceIndex index);
bool group_exists();
void set_group_exists();

} // namespace neuron_lab
