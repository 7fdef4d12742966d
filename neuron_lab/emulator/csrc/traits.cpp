#include "traits.h"

#include <ATen/core/function_schema.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <unordered_set>

namespace neuron_lab {
namespace {

using Names = std::unordered_set<std::string>;

// Seen running on the CPU by users of beta builds (field reports, 2026). The
// official per-operator table has not been read; nothing else is called a fallback.
const Names kReportedFallbacks = {"aten::_unique2", "aten::normal_",      "aten::uniform_",       "aten::atan2",
                                  "aten::acos",     "aten::linalg_cross", "aten::scatter_reduce", "aten::_scaled_mm"};

// Work of the tensor engine, which has no 64-bit floating point.
const Names kTensorEngine = {
    "aten::mm",    "aten::addmm",  "aten::bmm", "aten::baddbmm",    "aten::mv",
    "aten::addmv", "aten::dot",    "aten::vdot", "aten::convolution", "aten::convolution_backward",
    "aten::addbmm", "aten::_addmm_activation", "aten::_cdist_forward", "aten::linalg_matrix_exp",
    "aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward"};

// Conventions of PyTorch: these take CPU tensors beside device tensors.
const Names kTakesCpuArguments = {"aten::index",       "aten::_unsafe_index",         "aten::index_put",
                                  "aten::index_put_",  "aten::_index_put_impl_",      "aten::_unsafe_index_put",
                                  "aten::_ctc_loss",   "aten::_pack_padded_sequence", "aten::_ctc_loss_backward",
                                  "aten::_pin_memory", "aten::_amp_update_scale_"};

// addmv and addmv_ are one operator for what follows.
std::string without_underscore(std::string name) {
  if (!name.empty() && name.back() == '_') {
    name.pop_back();
  }
  return name;
}

std::string base_name(const c10::FunctionSchema& schema) {
  return schema.name();
}

struct Registry {
  std::mutex mutex;
  std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<OperatorTraits>> traits;
};

Registry& registry() {
  static auto* instance = [] {
    auto* made = new Registry;
    hold_at_fork(made->mutex);
    return made;
  }();
  return *instance;
}

} // namespace

OperatorTraits& traits_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const c10::FunctionSchema*, OperatorTraits*> seen;
  const auto* key = &op.schema();
  if (auto found = seen.find(key); found != seen.end()) {
    return *found->second;
  }
  auto& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto& slot = all.traits[key];
  if (!slot) {
    slot = std::make_unique<OperatorTraits>();
    slot->name = base_name(*key);
    slot->reported_fallback = kReportedFallbacks.count(slot->name) > 0;
    slot->tensor_engine = kTensorEngine.count(without_underscore(slot->name)) > 0;
    slot->takes_cpu_arguments = kTakesCpuArguments.count(slot->name) > 0;
    slot->cpu_results = slot->name == "aten::_pack_padded_sequence" ? 2 : 0; // batch_sizes is a CPU tensor everywhere
  }
  seen[key] = slot.get();
  return *slot;
}

void note(OperatorTraits& traits) {
  if (C10_UNLIKELY(!traits.executed.load(std::memory_order_relaxed))) {
    traits.executed.store(true, std::memory_order_relaxed);
  }
  if (C10_LIKELY(!traits.reported_fallback)) {
    return;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      !config().refuse_fallback, "The operator '", traits.name,
      "' is reported to run on the CPU under TorchNeuron, and NEURON_FALLBACK_ENABLED=0 forbids that. [emulated; the "
      "variable's exact meaning is not documented] Replace the operator, move it to the CPU yourself, or unset the variable.");
  if (!traits.warned.exchange(true)) {
    TORCH_WARN(
        "The operator '", traits.name, "' is reported to fall back to the CPU on a Trainium (field reports, beta builds): "
        "two transfers and a synchronisation per call. torch_neuronx.get_fallback_ops() lists what fell back. [emulated]");
  }
}

void refuse_float64(const OperatorTraits& traits, c10::ScalarType dtype) {
  // Not a TypeError: PyTorch's binary operators would swallow that and its message.
  TORCH_CHECK_NOT_IMPLEMENTED(
      !config().refuse_float64 || (dtype != at::kDouble && dtype != at::kComplexDouble),
      traits.name, " got a ", c10::toString(dtype),
      " tensor, and the tensor engine of a NeuronCore has no 64-bit floating point. What TorchNeuron does then is not "
      "documented; field reports saw the work silently done in 32 bits. The emulated device refuses instead: convert with "
      ".float() or .to(torch.bfloat16) (a module with module.float()), or compute on the CPU. NEURON_LAB_FLOAT64=allow "
      "lets it pass, at full precision.");
}

namespace {

std::vector<std::string> names_where(bool (*wanted)(const OperatorTraits&)) {
  std::set<std::string> names;
  auto& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  for (const auto& entry : all.traits) {
    if (wanted(*entry.second)) {
      names.insert(entry.second->name);
    }
  }
  return {names.begin(), names.end()};
}

} // namespace

std::vector<std::string> executed_operators() {
  return names_where([](const OperatorTraits& traits) { return traits.executed.load(); });
}

std::vector<std::string> fallback_operators() {
  return names_where([](const OperatorTraits& traits) { return traits.executed.load() && traits.reported_fallback; });
}

void clear_tracking() {
  auto& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  for (const auto& entry : all.traits) {
    entry.second->executed.store(false);
  }
}

} // namespace neuron_lab
