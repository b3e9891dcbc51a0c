// The engine's step, one rank: norm over all gradients, clipping, AdamW. Backward brings new gradients each time and is not timed.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/full.h>
#include <torch/nn/module.h>

#include "deepspeed/engine.h"
#include "micro/micro.h"

namespace micro {
namespace {

constexpr const char* kConfig = R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "zero_optimization": {"stage": 1},
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}}})";

struct Parameters : torch::nn::Module {
  Parameters(int64_t count, int64_t elements) {
    for (int64_t i = 0; i < count; ++i) register_parameter(std::to_string(i), at::full({elements}, 1.0));
  }
};

void run(const char* row, int64_t count, int64_t elements, const Options& options) {
  const auto model = std::make_shared<Parameters>(count, elements);
  const auto engine = deepspeed::initialize(model, {.config_json = kConfig});
  const std::vector<at::Tensor> parameters = model->parameters();
  // The same gradients as in micro_peers.py.
  at::Tensor gradient = at::arange(count * elements, at::kInt).remainder_(1000).to(at::kFloat).sub_(499.5).mul_(1e-3);
  const auto backward = [&] { engine->backward(at::dot(parameters.size() == 1 ? parameters[0] : at::cat(parameters), gradient)); };
  const auto times = sample(options, backward, [&] { engine->step(); });
  say(row, times, checksum(parameters));
}

}  // namespace

void optimizer(const Options& options) {
  say_copy_rate(options);
  run("optimizer + clip, 100 M in one tensor", 1, 100'000'000, options);
}

void small_tensors(const Options& options) {
  say_copy_rate(options);
  run("optimizer + clip, 4096 tensors x 1024", 4096, 1024, options);
}

}  // namespace micro
