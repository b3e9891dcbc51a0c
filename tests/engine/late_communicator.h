// A communicator whose results come as late as its contract allows: a collective does nothing before wait(), and until then its output holds NaN.
// Who reads a result, or gives an input back, without waiting gets wrong numbers every time instead of sometimes.
#pragma once

#include <torch/types.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "deepspeed/comm.h"

namespace deepspeed::testing {

class LateCommunicator final : public Communicator {
 public:
  explicit LateCommunicator(std::shared_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::string& name() const override { return inner_->name(); }
  const char* backend() const override { return inner_->backend(); }
  std::chrono::milliseconds timeout() const override { return inner_->timeout(); }

  std::unique_ptr<PendingCollective> all_reduce(at::Tensor tensor, ReduceOp op, const std::string& tag) override {
    const auto given = tensor.clone();
    poison(tensor);
    return later([=, this] {
      tensor.copy_(given);
      return inner_->all_reduce(tensor, op, tag);
    });
  }
  std::unique_ptr<PendingCollective> all_gather(at::Tensor output, at::Tensor input, const std::string& tag) override {
    const int64_t own = input.numel();
    for (int64_t r = 0; r < size(); ++r) {
      const auto part = output.view({-1}).narrow(0, r * own, own);
      if (part.const_data_ptr() != input.const_data_ptr()) poison(part);
    }
    return later([=, this] { return inner_->all_gather(output, input, tag); });
  }
  std::unique_ptr<PendingCollective> all_to_all(at::Tensor output, at::Tensor input, const std::string& tag) override {
    poison(output);
    return later([=, this] { return inner_->all_to_all(output, input, tag); });
  }
  std::unique_ptr<PendingCollective> broadcast(at::Tensor tensor, int root, const std::string& tag) override {
    if (root != rank()) poison(tensor);
    return later([=, this] { return inner_->broadcast(tensor, root, tag); });
  }
  std::unique_ptr<PendingCollective> reduce_scatter(at::Tensor output, at::Tensor input, const std::string& tag, bool accumulate,
                                                    PieceReady ready) override {
    const auto given = accumulate ? output.clone() : at::Tensor();
    poison(output);
    return later([=, this] {
      if (accumulate) output.copy_(given);
      return inner_->reduce_scatter(output, input, tag, accumulate, ready);
    });
  }
  std::unique_ptr<PendingCollective> send(at::Tensor tensor, int to, const std::string& tag) override {
    return inner_->send(tensor, to, tag);
  }
  std::unique_ptr<PendingCollective> receive(at::Tensor tensor, int from, const std::string& tag) override {
    poison(tensor);
    return later([=, this] { return inner_->receive(tensor, from, tag); });
  }
  void barrier(const std::string& tag) override { inner_->barrier(tag); }
  std::shared_ptr<SharedMemory> share_memory(std::size_t bytes, const std::string& tag) override {
    return inner_->share_memory(bytes, tag);
  }
  std::shared_ptr<Communicator> duplicate(const std::string& name) override {
    return std::make_shared<LateCommunicator>(inner_->duplicate(name));
  }
  uint64_t call_hash() const override { return inner_->call_hash(); }
  uint64_t bytes_sent() const override { return inner_->bytes_sent(); }
  uint64_t calls() const override { return inner_->calls(); }

 private:
  static void poison(const at::Tensor& tensor) {
    torch::NoGradGuard no_grad;
    if (tensor.is_floating_point()) {
      at::Tensor(tensor).fill_(NAN);
    } else {
      at::Tensor(tensor).fill_(77);
    }
  }

  struct Later final : PendingCollective {
    explicit Later(std::function<std::unique_ptr<PendingCollective>()> start) : start(std::move(start)) {}
    void wait() override {
      torch::NoGradGuard no_grad;
      start()->wait();
    }
    std::function<std::unique_ptr<PendingCollective>()> start;
  };
  static std::unique_ptr<PendingCollective> later(std::function<std::unique_ptr<PendingCollective>()> start) {
    return std::make_unique<Later>(std::move(start));
  }

  std::shared_ptr<Communicator> inner_;
};

}  // namespace deepspeed::testing
