// Buffers of a module (running means, counters) are part of its state.
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>
#include <mutex>

#include "checkpoint/small_runs.h"

namespace deepspeed {
namespace {

using testing::config_json;
using testing::fresh_directory;
using testing::rows;

struct NormNet : torch::nn::Module {
  NormNet() {
    torch::manual_seed(3);
    first = register_module("first", torch::nn::Linear(5, 6));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    table = register_buffer("table", torch::arange(4, torch::kInt32));
  }
  torch::Tensor forward(const torch::Tensor& x) { return norm(first(x)).pow(2).mean() + first(x).mean(); }
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor table;
};

class Buffers : public ::testing::TestWithParam<int> {};

TEST_P(Buffers, AreSavedAndLoadedBitForBit) {
  const std::string directory = fresh_directory("buffers" + std::to_string(GetParam()));
  run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
    static std::mutex construction;
    const auto make_net = [&] {
      std::lock_guard lock(construction);
      return std::make_shared<NormNet>();
    };
    EngineOptions options;
    options.config_json = config_json({.stage = GetParam()});
    options.communicator = communicator;
    auto net = make_net();
    auto engine = initialize(std::static_pointer_cast<torch::nn::Module>(net), options);
    const auto go = [&](NormNet& model, Engine& driver, int step) {
      auto loss = model.forward(rows(step, 0));
      driver.backward(loss);
      driver.step();
      return loss.item<double>();
    };
    for (int step = 0; step < 3; ++step) go(*net, *engine, step);
    net->table[2] = 77;
    engine->save_checkpoint(directory);
    std::vector<at::Tensor> saved;
    for (const auto& buffer : net->buffers()) saved.push_back(buffer.clone());
    const double next = go(*net, *engine, 3);

    auto other = make_net();
    auto second = initialize(std::static_pointer_cast<torch::nn::Module>(other), options);
    second->load_checkpoint(directory);
    const auto loaded = other->buffers();
    ASSERT_EQ(loaded.size(), 4u);
    for (size_t i = 0; i < saved.size(); ++i) {
      EXPECT_EQ(loaded[i].scalar_type(), saved[i].scalar_type());
      EXPECT_TRUE(torch::equal(loaded[i], saved[i])) << i;
    }
    EXPECT_EQ(other->norm->num_batches_tracked.item<int64_t>(), 3);
    EXPECT_EQ(go(*other, *second, 3), next);
  });
  std::filesystem::remove_all(directory);
}

INSTANTIATE_TEST_SUITE_P(Stages, Buffers, ::testing::Values(0, 1, 3));

}  // namespace
}  // namespace deepspeed
