// Reductions and gathers that run beside backward change no bit, however late they are: thousands of steps of random shape, and the same run again and
// again.
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "base/text.h"
#include "engine/late_communicator.h"
#include "engine/one_weight.h"

namespace deepspeed {
namespace {

using testing::LateCommunicator;

constexpr int kWidth = 4, kLayers = 5;

// A random path through a few layers: some skipped, some taken twice, so that units complete in many orders.
struct Paths : torch::nn::Module {
  Paths() {
    torch::manual_seed(21);
    for (int i = 0; i < kLayers; ++i) layers.push_back(register_module(base::str("layer", i), torch::nn::Linear(kWidth, kWidth)));
  }
  torch::Tensor forward(const torch::Tensor& x, const std::vector<int>& path) {
    auto h = x;
    for (const int layer : path) h = h + torch::tanh(layers[static_cast<size_t>(layer)](h));
    return h.pow(2).mean();
  }
  std::vector<torch::nn::Linear> layers;
};

enum class Results { kPlain, kLate };

struct RunSettings {
  int stage = 0, world = 2, steps = 0;
  bool overlap = true;
  Results results = Results::kPlain;
  const char* backend = "auto";
  bool share_memory = true;
};

// FNV-1a over the bits of all weights.
uint64_t hash_of(const std::map<std::string, at::Tensor>& weights) {
  uint64_t hash = 1469598103934665603ull;
  for (const auto& [name, value] : weights) {
    const auto flat = value.contiguous();
    const auto* bytes = static_cast<const unsigned char*>(flat.const_data_ptr());
    for (size_t i = 0; i < flat.nbytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211ull;
  }
  return hash;
}

struct Outcome {
  uint64_t hash = 0;
  double norms = 0;
  int64_t skipped = 0;
  bool operator==(const Outcome&) const = default;
};

Outcome outcome_of(const RunSettings& settings) {
  Outcome outcome;
  run_ranks_as_threads(
      settings.world,
      [&](std::shared_ptr<Communicator> communicator) {
        if (settings.results == Results::kLate) communicator = std::make_shared<LateCommunicator>(communicator);
        std::shared_ptr<Paths> net;
        {
          static std::mutex construction;
          std::lock_guard lock(construction);
          net = std::make_shared<Paths>();
        }
        EngineOptions options;
        options.config_json = R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "gradient_clipping": 0.5,
          "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": {"stage": )" +
                              std::to_string(settings.stage) + R"(, "stage3_param_persistence_threshold": 4, "reduce_bucket_size": 20,
          "stage3_prefetch_bucket_size": 40, "overlap_comm": )" +
                              (settings.overlap ? "true" : "false") + "}}";
        options.communicator = communicator;
        options.device = "cpu";
        options.share_memory = settings.share_memory;
        auto engine = initialize(net, options);
        // Ranks that gather must take one path; others need not.
        const bool one_path = settings.stage == 3 && (!settings.share_memory || settings.backend == std::string("gloo"));
        std::mt19937 same(17), own(100 + communicator->rank()), pace(std::random_device{}());
        double norms = 0;
        for (int step = 0; step < settings.steps; ++step) {
          for (int micro = 0; micro < 2; ++micro) {
            auto& random = one_path ? same : own;
            std::vector<int> path(1 + random() % (kLayers + 2));
            for (int& layer : path) layer = static_cast<int>(random() % kLayers);
            const auto generator =
                at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(8 * step + micro + 2 * communicator->rank()));
            const auto x = torch::randn({static_cast<int64_t>(1 + own() % 3), kWidth}, generator);
            for (unsigned i = pace() % 4; i > 0; --i) std::this_thread::yield();
            engine->backward(net->forward(x, path));
            engine->step();
          }
          norms += engine->get_global_grad_norm().value_or(NAN);
        }
        const auto weights = engine->full_parameters();
        if (communicator->rank() == 0) outcome = {hash_of(weights), norms, engine->skipped_steps()};
      },
      {.backend = settings.backend});
  return outcome;
}

class Overlap : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(All, Overlap, ::testing::Values(0, 1, 2, 3));

TEST_P(Overlap, OverlapIsBitEqualToNoOverlapOverManyRandomSteps) {
  for (const bool share_memory : {true, false}) {
    const RunSettings base{.stage = GetParam(), .steps = 100, .share_memory = share_memory};
    const auto with = [&](bool overlap, Results results, const char* backend = "auto") {
      RunSettings settings = base;
      settings.overlap = overlap;
      settings.results = results;
      settings.backend = backend;
      return outcome_of(settings);
    };
    const Outcome plain = with(false, Results::kPlain);
    EXPECT_EQ(plain.skipped, 0);
    EXPECT_EQ(with(true, Results::kPlain), plain);
    EXPECT_EQ(with(true, Results::kLate), plain);
    EXPECT_EQ(with(false, Results::kLate), plain);
    // Gloo moves bytes in a thread of its own: here a missing wait is a real race.
    if (!share_memory) {
      EXPECT_EQ(with(true, Results::kPlain, "gloo"), plain);
    }
  }
}

TEST_P(Overlap, TheSameRunAHundredTimesGivesOneHash) {
  std::set<uint64_t> hashes;
  for (int run = 0; run < 100; ++run) hashes.insert(outcome_of({.stage = GetParam(), .steps = 4, .share_memory = run % 2 == 0}).hash);
  // In stage 3 ranks that share memory may take paths of their own, the others may not: two runs, one hash each.
  EXPECT_EQ(hashes.size(), GetParam() == 3 ? 2u : 1u);
}

// What the tests above rely on.
TEST(LateCommunicator, ResultsAreNotThereBeforeTheWait) {
  run_ranks_as_threads(2, [](std::shared_ptr<Communicator> inner) {
    LateCommunicator communicator(inner);
    auto output = torch::ones({2}), input = torch::full({4}, 3.0f);
    const auto pending = communicator.reduce_scatter(output, input, "sum", /*accumulate=*/true, {});
    EXPECT_TRUE(torch::isnan(output).all().item<bool>());
    input.fill_(1);  // too early
    pending->wait();
    EXPECT_TRUE(torch::equal(output, torch::full({2}, 3.0f))) << output;
  });
}

}  // namespace
}  // namespace deepspeed
