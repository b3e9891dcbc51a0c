// Saving and loading the state of 134 M parameters with AdamW (1.6 GB) by two ranks: through an engine, as a user does.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <torch/nn/module.h>

#include <filesystem>
#include <string>

#include "deepspeed/engine.h"
#include "engine/engine_impl.h"
#include "micro/micro.h"

namespace micro {
namespace {

constexpr int kTensors = 16;
constexpr int64_t kRows = 2048, kColumns = 4096;

struct Weights : torch::nn::Module {
  Weights() {
    for (int i = 0; i < kTensors; ++i) {
      const auto values = at::arange(kRows * kColumns, at::kInt).remainder_(1009).to(at::kFloat).mul_(1e-3).add_(i).view({kRows, kColumns});
      register_parameter("p" + std::to_string(i), values);
    }
  }
};

}  // namespace

void checkpoint(const Options& options) {
  const auto ranks = deepspeed::init_distributed();
  const auto net = std::make_shared<Weights>();
  deepspeed::EngineOptions engine_options;
  engine_options.config_json = R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
                                   "zero_optimization": {"stage": 3}})";
  engine_options.communicator = ranks;
  const auto engine = deepspeed::initialize(std::static_pointer_cast<torch::nn::Module>(net), engine_options);
  {
    at::NoGradGuard no_grad;
    for (auto& unit : engine->impl().unit_states()) {
      for (size_t i = 0; i < unit.states.size(); ++i) unit.states[i].copy_(unit.parameter).mul_(0.1 * static_cast<double>(i + 1));
    }
  }
  ranks->barrier("filled");
  const std::string folder = (std::filesystem::temp_directory_path() / "ds_bench_checkpoint").string();
  const auto clear = [&] {
    if (ranks->rank() == 0) std::filesystem::remove_all(folder);
    ranks->barrier("cleared");
  };
  const std::string title = "checkpoint of 1.6 GB, ";
  const auto save = sample(options, clear, [&] { engine->save_checkpoint(folder, "a"); });
  const auto load = sample(
      options, [&] { ranks->barrier("load"); }, [&] { engine->load_checkpoint(folder, "a"); });
  const double check = checksum({net->named_parameters()["p3"]});
  deepspeed::SaveOptions background;
  background.async = true;
  const auto stall = sample(
      options,
      [&] {
        engine->wait_for_checkpoint();
        clear();
      },
      [&] { engine->save_checkpoint(folder, "a", "{}", background); });
  engine->wait_for_checkpoint();
  const auto behind = sample(options, clear, [&] {
    engine->save_checkpoint(folder, "a", "{}", background);
    engine->wait_for_checkpoint();
  });
  say(title + "save", save, check);
  say(title + "stall of a save in the background", stall, check);
  say(title + "background save to the end", behind, check);
  say(title + "load", load, check);
  clear();
}

}  // namespace micro
