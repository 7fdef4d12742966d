// init_process_group("neuron"): gloo, over the bytes of the device's tensors.
//
// Every collective lends gloo CPU aliases and returns at once; what is left to
// do afterwards (dividing for AVG, putting pieces in place) is done once, when
// the work is waited for or its future completes.
#ifdef USE_DISTRIBUTED
#include "alias.h"
#include "collective_work.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/utils/pybind.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

namespace neuron_lab {
namespace {

using at::Tensor;
using c10d::ReduceOp;

// gloo knows no bool; on the wire one is a byte.
Tensor lend(const Tensor& tensor) {
  TORCH_CHECK(
      on_neuron(tensor), "The neuron process group moves tensors of the neuron device, and got one on ", tensor.device(),
      ". Move it with tensor.to(\"neuron\"), or use a gloo group for CPU tensors.");
  auto cpu = neuron_lab::alias(tensor);
  return tensor.scalar_type() == at::kBool ? cpu.view(at::kByte) : cpu;
}

Tensors lend(const Tensors& tensors) {
  Tensors out;
  out.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    out.push_back(lend(tensor));
  }
  return out;
}

std::vector<Tensors> lend(const std::vector<Tensors>& lists) {
  std::vector<Tensors> out;
  for (const auto& list : lists) {
    out.push_back(lend(list));
  }
  return out;
}

Tensor flatten(const Tensors& tensors) {
  Tensors parts;
  for (const auto& tensor : tensors) {
    parts.push_back(tensor.reshape({-1}));
  }
  return at::cat(parts);
}

Tensors flat(const std::vector<Tensors>& lists) {
  Tensors out;
  for (const auto& list : lists) {
    out.insert(out.end(), list.begin(), list.end());
  }
  return out;
}

// The reduction that gloo is asked for, and what is left to divide by.
struct Reduction {
  ReduceOp op;
  int64_t divide_by = 1;
};

Reduction reduction(const ReduceOp& wanted, const Tensors& tensors, int size) {
  TORCH_CHECK(
      wanted.op_ != ReduceOp::PREMUL_SUM,
      "ReduceOp.PREMUL_SUM is not available on the neuron process group; multiply the tensor, then reduce with SUM");
  const bool boolean = !tensors.empty() && tensors[0].scalar_type() == at::kBool;
  if (wanted.op_ == ReduceOp::AVG) {
    return {ReduceOp(ReduceOp::SUM), size};
  }
  if (boolean && wanted.op_ == ReduceOp::SUM) {
    return {ReduceOp(ReduceOp::MAX)}; // as NCCL: a sum of truth values is "any"
  }
  return {wanted};
}

void divide(const Tensors& tensors, int64_t by) {
  if (by != 1) {
    for (auto tensor : tensors) {
      at::isIntegralType(tensor.scalar_type(), true) ? tensor.div_(by, "trunc") : tensor.div_(by);
    }
  }
}

struct NeuronProcessGroup final : c10d::Backend {
  c10::intrusive_ptr<c10d::Backend> gloo;
  std::vector<WorkPtr> coalesced;
  bool coalescing = false;

  explicit NeuronProcessGroup(c10::intrusive_ptr<c10d::Backend> backend)
      : Backend(backend->getRank(), backend->getSize()), gloo(std::move(backend)) {}

  WorkPtr work(std::vector<WorkPtr> inner, Tensors outputs, Tensors kept, std::function<void()> after = nullptr) {
    WorkPtr made = c10::make_intrusive<NeuronWork>(std::move(inner), std::move(outputs), std::move(kept), std::move(after));
    if (coalescing) {
      coalesced.push_back(made);
    }
    return made;
  }

  const std::string getBackendName() const override {
    return "neuron";
  }
  bool supportsCoalescing() const override {
    return true;
  }
  void startCoalescing() override {
    coalescing = true;
    coalesced.clear();
  }
  WorkPtr endCoalescing() override {
    coalescing = false;
    return c10::make_intrusive<NeuronWork>(std::move(coalesced), Tensors{}, Tensors{}, nullptr);
  }
  void setTimeout(std::chrono::milliseconds timeout) override {
    gloo->setTimeout(timeout);
  }
  void abort() override {
    gloo->abort();
  }
  void shutdown() override {
    gloo->shutdown();
  }
  void setSequenceNumberForGroup() override {
    gloo->setSequenceNumberForGroup();
  }
  uint64_t getSequenceNumberForGroup() override {
    return gloo->getSequenceNumberForGroup();
  }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all) override {
    gloo->monitoredBarrier(options, wait_all);
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    auto plain = options;
    plain.device_ids.clear();
    plain.device = std::nullopt;
    return work({gloo->barrier(plain)}, {}, {});
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    auto lent = lend(tensors);
    return work({gloo->broadcast(lent, options)}, tensors, lent);
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    auto lent = lend(tensors);
    const auto how = reduction(options.reduceOp, tensors, getSize());
    auto changed = options;
    changed.reduceOp = how.op;
    return work({gloo->allreduce(lent, changed)}, tensors, lent, [lent, how] { divide(lent, how.divide_by); });
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    auto lent = lend(tensors);
    const auto how = reduction(options.reduceOp, tensors, getSize());
    auto changed = options;
    changed.reduceOp = how.op;
    return work({gloo->allreduce_coalesced(lent, changed)}, tensors, lent, [lent, how] { divide(lent, how.divide_by); });
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    auto lent = lend(tensors);
    const auto how = reduction(options.reduceOp, tensors, getSize());
    auto changed = options;
    changed.reduceOp = how.op;
    const bool root = options.rootRank == getRank();
    return work({gloo->reduce(lent, changed)}, tensors, lent, [lent, how, root] {
      divide(root ? lent : Tensors{}, how.divide_by);
    });
  }
  WorkPtr allgather(std::vector<Tensors>& out, Tensors& in, const c10d::AllgatherOptions& options) override {
    auto lent_out = lend(out);
    auto lent_in = lend(in);
    auto inner = gloo->allgather(lent_out, lent_in, options);
    auto kept = flat(lent_out);
    kept.insert(kept.end(), lent_in.begin(), lent_in.end());
    return work({std::move(inner)}, flat(out), std::move(kept));
  }
  WorkPtr _allgather_base(Tensor& out, Tensor& in, const c10d::AllgatherOptions& options) override {
    auto lent_out = lend(out);
    auto lent_in = lend(in);
    return work({gloo->_allgather_base(lent_out, lent_in, options)}, {out}, {lent_out, lent_in});
  }
  WorkPtr allgather_coalesced(std::vector<Tensors>& out, Tensors& in, const c10d::AllgatherOptions& options) override {
    auto lent_out = lend(out);
    auto lent_in = lend(in);
    auto inner = gloo->allgather_coalesced(lent_out, lent_in, options);
    auto kept = flat(lent_out);
    kept.insert(kept.end(), lent_in.begin(), lent_in.end());
    return work({std::move(inner)}, flat(out), std::move(kept));
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& out, Tensors& in, const c10d::AllgatherOptions& options) override {
    auto lent_out = lend(out);
    auto lent_in = lend(in);
    std::vector<WorkPtr> inner;
    for (size_t i = 0; i < out.size(); ++i) {
      inner.push_back(gloo->_allgather_base(lent_out[i], lent_in[i], options));
    }
    auto kept = lent_out;
    kept.insert(kept.end(), lent_in.begin(), lent_in.end());
    return work(std::move(inner), out, std::move(kept));
  }
  WorkPtr gather(std::vector<Tensors>& out, Tensors& in, const c10d::GatherOptions& options) override {
    auto lent_out = lend(out);
    auto lent_in = lend(in);
    auto inner = gloo->gather(lent_out, lent_in, options);
    auto kept = flat(lent_out);
    kept.insert(kept.end(), lent_in.begin(), lent_in.end());
    return work({std::move(inner)}, flat(out), std::move(kept));
  }
  WorkPtr scatter(Tensors& out, std::vector<Tensors>& in, const c10d::ScatterOptions& options) override {
    auto lent_out = lend(out);
    auto lent_in = lend(in);
    auto inner = gloo->scatter(lent_out, lent_in, options);
    auto kept = flat(lent_in);
    kept.insert(kept.end(), lent_out.begin(), lent_out.end());
    return work({std::move(inner)}, out, std::move(kept));
  }
  WorkPtr reduce_scatter(Tensors& out, std::vector<Tensors>& in, const c10d::ReduceScatterOptions& options) override {
    Tensors packed;
    for (const auto& pieces : in) {
      packed.push_back(flatten(lend(pieces)));
    }
    return reduce_and_keep_own(out, std::move(packed), options);
  }
  WorkPtr _reduce_scatter_base(Tensor& out, Tensor& in, const c10d::ReduceScatterOptions& options) override {
    Tensors outs{out};
    Tensors ins{in};
    return reduce_scatter_tensor_coalesced(outs, ins, options);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& out, Tensors& in, const c10d::ReduceScatterOptions& options) override {
    Tensors packed;
    for (const auto& tensor : lend(in)) {
      packed.push_back(tensor.reshape({-1}).clone());
    }
    return reduce_and_keep_own(out, std::move(packed), options);
  }
  WorkPtr alltoall_base(
      Tensor& out, Tensor& in, std::vector<int64_t>& out_splits, std::vector<int64_t>& in_splits,
      const c10d::AllToAllOptions& options) override {
    check_all_to_all();
    auto lent_out = lend(out);
    auto lent_in = lend(in);
    return work(
        {gloo->alltoall_base(lent_out, lent_in, out_splits, in_splits, options)}, {out}, {lent_out, lent_in});
  }
  // gloo has the one-buffer form only: pack, exchange, unpack.
  WorkPtr alltoall(Tensors& out, Tensors& in, const c10d::AllToAllOptions& options) override {
    check_all_to_all();
    const auto sizes = [](const Tensors& tensors) {
      std::vector<int64_t> counts;
      for (const auto& tensor : tensors) {
        counts.push_back(tensor.numel());
      }
      return counts;
    };
    auto lent_out = lend(out);
    auto packed = flatten(lend(in));
    auto received = at::empty({flatten(lent_out).numel()}, packed.options());
    auto out_splits = sizes(out);
    auto in_splits = sizes(in);
    auto inner = gloo->alltoall_base(received, packed, out_splits, in_splits, options);
    return work({std::move(inner)}, out, {packed}, [lent_out, received] {
      int64_t at = 0;
      for (auto part : lent_out) {
        part.copy_(received.narrow(0, at, part.numel()).view(part.sizes()));
        at += part.numel();
      }
    });
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    auto lent = lend(tensors);
    return work({gloo->send(lent, to, tag)}, tensors, lent);
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    auto lent = lend(tensors);
    return work({gloo->recv(lent, from, tag)}, tensors, lent);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    auto lent = lend(tensors);
    return work({gloo->recvAnysource(lent, tag)}, tensors, lent);
  }

 private:
  // gloo's own reduce_scatter is this too, but its work never says that it has completed.
  WorkPtr reduce_and_keep_own(Tensors& out, Tensors packed, const c10d::ReduceScatterOptions& options) {
    const auto how = reduction(options.reduceOp, out, getSize());
    auto lent_out = lend(out);
    std::vector<WorkPtr> inner;
    for (size_t i = 0; i < out.size(); ++i) {
      TORCH_CHECK(
          packed[i].numel() == lent_out[i].numel() * getSize(), "reduce_scatter: the input has ", packed[i].numel(),
          " elements, and ", getSize(), " ranks with an output of ", lent_out[i].numel(), " need ",
          lent_out[i].numel() * getSize());
      c10d::AllreduceOptions all;
      all.reduceOp = how.op;
      all.timeout = options.timeout;
      Tensors one{packed[i]};
      inner.push_back(gloo->allreduce(one, all));
    }
    const auto rank = getRank();
    return work(std::move(inner), out, packed, [lent_out, packed, how, rank] {
      for (size_t i = 0; i < packed.size(); ++i) {
        auto own = lent_out[i];
        own.copy_(packed[i].narrow(0, rank * own.numel(), own.numel()).view(own.sizes()));
      }
      divide(lent_out, how.divide_by);
    });
  }

  // Field report of the real backend: "supported sizes: 4, 8, 16, or multiples of 32".
  void check_all_to_all() const {
    const auto size = getSize();
    TORCH_CHECK(
        size == 1 || size == 4 || size == 8 || size == 16 || size % 32 == 0,
        "all_to_all over ", size, " ranks is refused on neuron: supported sizes: 4, 8, 16, or multiples of 32 (as field "
        "reports of the real backend have it). Use one of these sizes, or send and receive the pieces.");
  }
};

} // namespace

void bind_process_group(py::module_& m) {
  py::class_<NeuronProcessGroup, c10::intrusive_ptr<NeuronProcessGroup>, c10d::Backend>(m, "NeuronProcessGroup")
      .def(py::init<c10::intrusive_ptr<c10d::Backend>>(), py::call_guard<py::gil_scoped_release>());
}

} // namespace neuron_lab
#endif // USE_DISTRIBUTED
