#include "allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace neuron_lab {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;
using c10::CachingDeviceAllocator::DeviceStats;

// Documented: two pools, split at 1 MB, and rounding up below 16 MB with at
// least 256 B. Which size classes there are is not; multiples of 256 B are ours.
constexpr size_t kSmallLimit = size_t{1} << 20;
constexpr size_t kRoundingLimit = size_t{16} << 20;
constexpr size_t kQuantum = 256;
// The size of a segment is not documented. 2 MiB is ours.
constexpr size_t kSegment = size_t{2} << 20;

size_t round_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

size_t size_class(size_t bytes) {
  return bytes < kRoundingLimit ? round_up(bytes, kQuantum) : bytes;
}

std::string human(size_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  char text[64];
  if (mib >= 1024) {
    std::snprintf(text, sizeof text, "%.2f GiB", mib / 1024);
  } else if (mib >= 1) {
    std::snprintf(text, sizeof text, "%.2f MiB", mib);
  } else {
    std::snprintf(text, sizeof text, "%zu B", bytes);
  }
  return text;
}

// The books of one core. Segments are bookkeeping only: freed host memory goes
// back to the system at once, and `reserved` says what a caching allocator
// without fragmentation would have kept.
struct Books {
  std::mutex mutex;
  DeviceStats stats;
  size_t in_use[2] = {0, 0};   // by pool: small, large
  size_t reserved[2] = {0, 0};

  void count(size_t pool, int64_t blocks, int64_t bytes) {
    total(stats.allocation, pool, blocks);
    total(stats.active, pool, blocks);
    total(stats.allocated_bytes, pool, bytes);
    total(stats.active_bytes, pool, bytes);
    total(stats.requested_bytes, pool, bytes);
  }

  void total(StatArray& array, size_t pool, int64_t amount) {
    for (auto type : {StatType::AGGREGATE, pool == 0 ? StatType::SMALL_POOL : StatType::LARGE_POOL}) {
      auto& stat = array[static_cast<size_t>(type)];
      if (amount >= 0) {
        stat.increase(static_cast<size_t>(amount));
      } else {
        stat.decrease(static_cast<size_t>(-amount));
      }
    }
  }
};

Books g_books[kMaxCores];
thread_local int tls_kernel_core = -1;

size_t pool_of(size_t bytes) {
  return bytes < kSmallLimit ? 0 : 1;
}

size_t allocated(const Books& books) {
  return books.in_use[0] + books.in_use[1];
}

void set_reserved(Books& books, size_t pool, size_t bytes) {
  const auto change = static_cast<int64_t>(bytes) - static_cast<int64_t>(books.reserved[pool]);
  const auto segments = static_cast<int64_t>(bytes / kSegment) - static_cast<int64_t>(books.reserved[pool] / kSegment);
  books.total(books.stats.reserved_bytes, pool, change);
  books.total(books.stats.segment, pool, segments);
  (segments >= 0 ? books.stats.num_device_alloc : books.stats.num_device_free) += std::abs(segments);
  books.reserved[pool] = bytes;
}

// What the other core of the same bank holds (LNC=1), read without its lock:
// an answer a moment old is as good as the one a real race would give.
size_t held_by_neighbours(int core) {
  size_t bytes = 0;
  const int per_bank = config().cores_per_bank;
  for (int other = core / per_bank * per_bank; other < (core / per_bank + 1) * per_bank; ++other) {
    if (other != core && other < kMaxCores) {
      bytes += allocated(g_books[other]);
    }
  }
  return bytes;
}

[[noreturn]] void out_of_memory(int core, size_t bytes, const Books& books, size_t neighbours) {
  const auto limit = config().hbm_bytes;
  const auto used = allocated(books) + neighbours;
  TORCH_CHECK_WITH(
      OutOfMemoryError, false,
      "Neuron OOM: requested_size=", bytes, " total_hbm=", limit, ". neuron:", core, " tried to allocate ", human(bytes),
      "; ", human(used), " of ", human(limit), " HBM is in use", neighbours ? " (the neighbour core shares the bank)" : "",
      ", ", human(used < limit ? limit - used : 0), " is free. [emulated limit] Free tensors (del, then "
      "torch.neuron.empty_cache()), use a smaller batch or a smaller dtype, or shard over more cores; NEURON_LAB_HBM_GB "
      "sets the emulated size.");
  std::abort(); // not reached: the check above throws
}

void check_room(int core, size_t bytes, Books& books, size_t neighbours) {
  if (C10_UNLIKELY(allocated(books) + neighbours + size_class(bytes) > config().hbm_bytes)) {
    books.stats.num_ooms += 1;
    out_of_memory(core, bytes, books, neighbours);
  }
}

size_t neighbours_of(int core) {
  return config().cores_per_bank > 1 ? held_by_neighbours(core) : 0;
}

size_t charge(int core, size_t bytes) {
  const auto counted = size_class(bytes);
  const auto pool = pool_of(counted);
  const auto neighbours = neighbours_of(core);
  auto& books = g_books[core];
  std::lock_guard<std::mutex> lock(books.mutex);
  check_room(core, bytes, books, neighbours);
  books.in_use[pool] += counted;
  if (books.in_use[pool] > books.reserved[pool]) {
    const auto other = 1 - pool;
    const auto wanted = round_up(books.in_use[pool], kSegment);
    if (wanted + books.reserved[other] + neighbours > config().hbm_bytes) {
      books.stats.num_alloc_retries += 1; // cached segments of the other pool are given back first
      set_reserved(books, other, books.in_use[other]);
    }
    set_reserved(books, pool, wanted);
  }
  books.count(pool, 1, static_cast<int64_t>(counted));
  return counted;
}

void refund(int core, size_t counted) {
  if (C10_UNLIKELY(in_bad_fork())) {
    return; // another thread of the parent may have held the lock; the books are the parent's
  }
  const auto pool = pool_of(counted);
  auto& books = g_books[core];
  std::lock_guard<std::mutex> lock(books.mutex);
  books.in_use[pool] -= counted;
  books.count(pool, -1, -static_cast<int64_t>(counted));
}

void tell_profiler(void* data, int64_t change, c10::DeviceIndex core) {
  if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
    auto& books = g_books[core];
    c10::reportMemoryUsageToProfiler(
        data, change, allocated(books), books.reserved[0] + books.reserved[1], c10::Device(kNeuron, core));
  }
}

// The gate. It hands every request on; what it returns is ordinary CPU memory.
struct CpuGate final : c10::Allocator {
  c10::Allocator* host = nullptr;

  c10::DataPtr allocate(size_t bytes) override {
    if (C10_UNLIKELY(tls_kernel_core >= 0 && bytes > kRoundingLimit)) { // small ones are counted soon enough
      auto& books = g_books[tls_kernel_core];
      const auto neighbours = neighbours_of(tls_kernel_core);
      std::lock_guard<std::mutex> lock(books.mutex);
      check_room(tls_kernel_core, bytes, books, neighbours);
    }
    return host->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return host->raw_deleter();
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    host->copy_data(to, from, bytes);
  }
};

CpuGate& g_cpu_gate = *new CpuGate;

struct NeuronAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    touch();
    const auto core = resolve_core(-1);
    const c10::Device device(kNeuron, core);
    if (bytes == 0) {
      return {nullptr, device};
    }
    const auto counted = charge(core, bytes);
    try {
      auto memory = g_cpu_gate.host->allocate(bytes);
      void* data = memory.mutable_get();
      tell_profiler(data, static_cast<int64_t>(counted), core);
      return {data, new Block{std::move(memory), counted, core}, &free_block, device};
    } catch (...) {
      refund(core, counted);
      throw;
    }
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t) override {
    for (int core = 0; core < config().cores; ++core) {
      std::lock_guard<std::mutex> lock(g_books[core].mutex);
      for (size_t pool : {0, 1}) {
        set_reserved(g_books[core], pool, std::min(g_books[core].reserved[pool], round_up(g_books[core].in_use[pool], kSegment)));
      }
    }
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {} // every stream runs in program order
  DeviceStats getDeviceStats(c10::DeviceIndex core) override {
    auto& books = g_books[resolve_core(core)];
    std::lock_guard<std::mutex> lock(books.mutex);
    return books.stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex core) override {
    each_stat(core, [](Stat& stat) { stat.reset_accumulated(); });
    auto& stats = g_books[resolve_core(core)].stats;
    stats.num_ooms = stats.num_alloc_retries = stats.num_device_alloc = stats.num_device_free = 0;
  }
  void resetPeakStats(c10::DeviceIndex core) override {
    each_stat(core, [](Stat& stat) { stat.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex core) override {
    core = resolve_core(core);
    const auto used = allocated(g_books[core]) + (config().cores_per_bank > 1 ? held_by_neighbours(core) : 0);
    return {config().hbm_bytes - std::min(used, config().hbm_bytes), config().hbm_bytes};
  }

 private:
  template <typename Change>
  void each_stat(c10::DeviceIndex core, Change change) {
    auto& books = g_books[resolve_core(core)];
    std::lock_guard<std::mutex> lock(books.mutex);
    auto& s = books.stats;
    for (auto* array :
         {&s.allocation, &s.segment, &s.active, &s.inactive_split, &s.allocated_bytes, &s.reserved_bytes, &s.active_bytes,
          &s.inactive_split_bytes, &s.requested_bytes}) {
      for (auto& stat : *array) {
        change(stat);
      }
    }
    change(s.oversize_allocations);
    change(s.oversize_segments);
  }
};

// Host memory that is remembered as pinned, so that `is_pinned` tells the
// truth about what `pin_memory` was asked to do. Nothing is locked.
struct PinnedAllocator final : c10::Allocator {
  std::mutex mutex;
  std::map<const char*, size_t> ranges;

  static void release(void* data); // defined below, where the one instance is known
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, c10::Device(c10::kCPU)};
    }
    void* data = c10::alloc_cpu(bytes);
    std::lock_guard<std::mutex> lock(mutex);
    ranges[static_cast<const char*>(data)] = bytes;
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

// Never destroyed: tensors may outlive the static objects of this library.
NeuronAllocator& g_device_allocator = *new NeuronAllocator;
PinnedAllocator& g_pinned_allocator = *new PinnedAllocator;

void PinnedAllocator::release(void* data) {
  if (C10_UNLIKELY(in_bad_fork())) {
    return; // as in refund; the child's copy of the page goes with the child
  }
  {
    std::lock_guard<std::mutex> lock(g_pinned_allocator.mutex);
    g_pinned_allocator.ranges.erase(static_cast<const char*>(data));
  }
  c10::free_cpu(data);
}

} // namespace

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  if (auto* view = block->cpu_view.load(std::memory_order_relaxed)) {
    c10::intrusive_ptr<c10::StorageImpl>::reclaim(view); // drops our reference
  }
  refund(block->core, block->counted);
  tell_profiler(block->memory.mutable_get(), -static_cast<int64_t>(block->counted), block->core);
  delete block; // and the memory with it
}

c10::DataPtr take_memory(c10::DataPtr&& memory, size_t bytes, c10::DeviceIndex core) {
  const c10::Device device(kNeuron, core);
  void* data = memory.mutable_get();
  if (data == nullptr || bytes == 0) {
    return {nullptr, device};
  }
  const auto counted = charge(core, bytes);
  tell_profiler(data, static_cast<int64_t>(counted), core);
  return {data, new Block{std::move(memory), counted, core}, &free_block, device};
}

c10::DeviceAllocator* device_allocator() {
  return &g_device_allocator;
}

c10::Allocator* pinned_allocator() {
  return &g_pinned_allocator;
}

bool is_pinned(const void* data) {
  const auto* address = static_cast<const char*>(data);
  auto& pinned = g_pinned_allocator;
  std::lock_guard<std::mutex> lock(pinned.mutex);
  auto after = pinned.ranges.upper_bound(address);
  return after != pinned.ranges.begin() && address < std::prev(after)->first + std::prev(after)->second;
}

void install_allocators() {
  c10::SetAllocator(kNeuron, &g_device_allocator);
  if (g_cpu_gate.host == nullptr) {
    g_cpu_gate.host = c10::GetCPUAllocator();
    c10::SetCPUAllocator(&g_cpu_gate, /*priority=*/1);
    for (auto& books : g_books) {
      hold_at_fork(books.mutex);
    }
    hold_at_fork(g_pinned_allocator.mutex);
  }
}

KernelScope::KernelScope(c10::DeviceIndex core) : before_(tls_kernel_core) {
  tls_kernel_core = core;
}

KernelScope::~KernelScope() {
  tls_kernel_core = before_;
}

} // namespace neuron_lab
