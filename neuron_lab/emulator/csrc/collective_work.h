// A collective under way: gloo's work, and what is left to do after it.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <mutex>

namespace neuron_lab {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

struct NeuronWork final : c10d::Work {
  std::vector<WorkPtr> inner;
  Tensors outputs;
  Tensors kept; // the aliases, until gloo is done with them
  std::function<void()> finish;
  std::mutex mutex;
  bool finished = false;

  NeuronWork(std::vector<WorkPtr> works, Tensors out, Tensors keep, std::function<void()> after)
      : Work(-1, c10d::OpType::UNKNOWN),
        inner(std::move(works)),
        outputs(std::move(out)),
        kept(std::move(keep)),
        finish(std::move(after)) {}

  void complete() {
    std::lock_guard<std::mutex> lock(mutex);
    if (!finished) {
      finished = true;
      if (finish) {
        finish();
      }
      finish = nullptr;
      kept.clear();
    }
  }
  bool isCompleted() override {
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (finished) {
        return true;
      }
    }
    for (auto& work : inner) {
      if (!work->isCompleted()) {
        return false;
      }
    }
    if (isSuccess()) {
      complete();
    }
    return true;
  }
  bool isSuccess() const override {
    for (const auto& work : inner) {
      if (work->exception()) {
        return false;
      }
    }
    return true;
  }
  std::exception_ptr exception() const override {
    for (const auto& work : inner) {
      if (auto error = work->exception()) {
        return error;
      }
    }
    return nullptr;
  }
  int sourceRank() const override {
    return inner.at(0)->sourceRank();
  }
  bool wait(std::chrono::milliseconds timeout) override {
    for (auto& work : inner) {
      work->wait(timeout);
    }
    complete();
    return true;
  }
  void synchronize() override {
    wait(kNoTimeout);
  }
  void abort() override {
    for (auto& work : inner) {
      work->abort();
    }
  }
  Tensors result() override {
    return outputs;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const auto type = c10::ListType::create(c10::TensorType::get());
    auto future = c10::make_intrusive<c10::ivalue::Future>(type);
    auto self = c10::intrusive_ptr<NeuronWork>::reclaim_copy(this);
    if (inner.size() == 1) {
      inner[0]->getFuture()->addCallback([self, future](c10::ivalue::Future& done) {
        if (done.hasError()) {
          future->setError(done.exception_ptr());
          return;
        }
        self->complete();
        future->markCompleted(c10::IValue(self->outputs));
      });
    } else {
      wait(kNoTimeout);
      future->markCompleted(c10::IValue(outputs));
    }
    return future;
  }
};

} // namespace neuron_lab
