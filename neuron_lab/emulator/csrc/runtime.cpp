#include "runtime.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace neuron_lab {
namespace {

Config g_config;
std::atomic<bool> g_touched{false};
std::atomic<bool> g_bad_fork{false};
std::atomic<int> g_process_core{0}; // what the main thread chose last
std::atomic<int> g_only_core{-1};   // set by the process group
std::thread::id g_main_thread = std::this_thread::get_id();
std::atomic<bool> g_group_exists{false};
thread_local int tls_core = -1;

struct HeldAtFork {
  std::mutex mutex;
  std::vector<std::mutex*> list;
};

HeldAtFork& held_at_fork() {
  static auto* held = new HeldAtFork;
  return *held;
}

void before_fork() {
  auto& held = held_at_fork();
  held.mutex.lock();
  for (auto* mutex : held.list) {
    mutex->lock();
  }
}

void after_fork() {
  auto& held = held_at_fork();
  for (auto mutex = held.list.rbegin(); mutex != held.list.rend(); ++mutex) {
    (*mutex)->unlock();
  }
  held.mutex.unlock();
}

void after_fork_in_child() {
  after_fork();
  g_main_thread = std::this_thread::get_id();
  if (g_touched.load()) {
    g_bad_fork.store(true);
  }
}

std::string valid_range() {
  if (g_config.cores == 1) {
    return "only neuron:0 exists in this process";
  }
  return c10::str(
      "valid are neuron:0 to neuron:", g_config.cores - 1, " (this process sees ", g_config.cores, " cores)");
}

} // namespace

void configure(const Config& config) {
  g_config = config;
  g_process_core.store(config.start_core);
#if !defined(_WIN32)
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(&before_fork, &after_fork, &after_fork_in_child); });
#endif
}

const Config& config() {
  return g_config;
}

bool touched() {
  return g_touched.load(std::memory_order_relaxed);
}

bool in_bad_fork() {
  return g_bad_fork.load(std::memory_order_relaxed);
}

void hold_at_fork(std::mutex& mutex) {
  auto& held = held_at_fork();
  std::lock_guard<std::mutex> lock(held.mutex);
  held.list.push_back(&mutex);
}

void refuse_after_fork() {
  TORCH_CHECK(
      !in_bad_fork(),
      "Cannot re-initialize the neuron device in a forked subprocess. The parent process had already used the device, "
      "and a core belongs to the process that opened it. A DataLoader's workers make CPU tensors; move "
      "the batch afterwards. For other processes use the 'spawn' start method, or fork before the first use of the device.");
}

void touch() {
  if (C10_LIKELY(touched() && !in_bad_fork())) {
    return;
  }
  refuse_after_fork();
  TORCH_CHECK(
      g_config.problem.empty(), g_config.problem);
  g_touched.store(true);
}

c10::DeviceIndex current_core() {
  return static_cast<c10::DeviceIndex>(tls_core >= 0 ? tls_core : g_process_core.load(std::memory_order_relaxed));
}

c10::DeviceIndex resolve_core(c10::DeviceIndex index) {
  const int wanted = index < 0 ? current_core() : index;
  TORCH_CHECK(g_config.problem.empty(), g_config.problem);
  TORCH_CHECK(
      wanted < g_config.cores,
      "neuron:", wanted, " does not exist: ", valid_range(),
      ". Cores come from the instance, NEURON_RT_VISIBLE_CORES and NEURON_RT_NUM_CORES; "
      "NEURON_LAB_CORES raises the number of emulated cores.");
  const int only = g_only_core.load(std::memory_order_relaxed);
  TORCH_CHECK(
      only < 0 || wanted == only,
      "neuron:", wanted, " belongs to another rank: under init_process_group(\"neuron\") the only valid index of a "
      "rank is its local rank, here neuron:", only, ". Write the bare device \"neuron\" instead of an index.");
  return static_cast<c10::DeviceIndex>(wanted);
}

void set_current_core(c10::DeviceIndex index) {
  tls_core = index;
  if (std::this_thread::get_id() == g_main_thread) {
    g_process_core.store(index);
  }
}

c10::DeviceIndex exchange_core(c10::DeviceIndex index) {
  const auto before = current_core();
  if (index >= 0 && index != before) {
    tls_core = index;
  }
  return before;
}

bool group_exists() {
  return g_group_exists.load();
}

void set_group_exists() {
  g_group_exists.store(true);
}

void restrict_to(c10::DeviceIndex index) {
  g_only_core.store(index);
  if (index >= 0) {
    set_current_core(index);
  }
}

} // namespace neuron_lab
