#include <ATen/Parallel.h>

#include <mutex>
#include <regex>

#include "conformance/train_case.h"
#include "deepspeed/engine.h"
#include "deepspeed/models.h"
#include "deepspeed/safetensors.h"
#include "parameter_groups.h"

namespace deepspeed::conformance {
namespace {

// What one rank saw.
struct RankLog {
  std::vector<StepResult> steps;
  std::vector<std::vector<double>> losses;  // [step][micro batch]
};

RankLog train_rank(CausalLM& model, Engine& engine, const at::Tensor& tokens, int64_t steps, int64_t accumulation, int rank) {
  RankLog log;
  for (int64_t step = 0; step < steps; ++step) {
    StepResult result;
    result.lr = engine.get_lr();
    result.momentum = engine.get_mom();
    std::vector<double> losses;
    const int64_t skipped = engine.skipped_steps();
    for (int64_t micro = 0; micro < accumulation; ++micro) {
      const auto ids = tokens[step * accumulation + micro][rank].contiguous();
      auto loss = engine.forward([&] { return model.loss(ids); });
      losses.push_back(loss.item().toDouble());
      engine.backward(loss);
      engine.step();
    }
    result.grad_norm = engine.get_global_grad_norm();
    result.skipped = engine.skipped_steps() > skipped;
    result.loss_scale = engine.loss_scale();
    log.losses.push_back(std::move(losses));
    log.steps.push_back(std::move(result));
  }
  return log;
}

}  // namespace

TrainResult run_training(const std::filesystem::path& root, const std::filesystem::path& directory, const Json& settings) {
  const int world = settings.at("world_size");
  const int64_t steps = settings.at("steps"), accumulation = settings.at("accumulation");
  const auto tokens = load_safetensors((directory / "tokens.safetensors").string()).at("tokens");
  EngineOptions options;
  options.config_json = read_text(directory / "ds_config.json");
  if (settings.contains("parameter_groups")) options.groups = parse_groups(settings["parameter_groups"]);
  options.device = "cpu";
  std::vector<RankLog> logs(static_cast<size_t>(world));
  TrainResult result;
  CommOptions comm;
  comm.timeout = std::chrono::minutes(2);
  run_ranks_as_threads(
      world,
      [&](std::shared_ptr<Communicator> communicator) {
        auto model = load_model((root / "models" / settings.at("model").get<std::string>()).string());
        if (settings.contains("train_only") && !settings["train_only"].is_null()) {
          const std::regex pattern(settings["train_only"].get<std::string>());
          for (auto& item : model->named_parameters()) {
            if (!std::regex_search(item.key(), pattern)) item.value().set_requires_grad(false);
          }
        }
        model->train();
        EngineOptions mine = options;
        mine.communicator = communicator;
        auto engine = initialize(model, mine);
        const auto rank = static_cast<size_t>(communicator->rank());
        logs[rank] = train_rank(*model, *engine, tokens, steps, accumulation, communicator->rank());
        auto weights = engine->full_parameters();
        if (rank == 0) result.weights = std::move(weights);
      },
      comm);
  for (int64_t step = 0; step < steps; ++step) {
    StepResult merged = logs[0].steps[static_cast<size_t>(step)];
    double sum = 0;
    for (const auto& log : logs) {
      merged.losses.push_back(log.losses[static_cast<size_t>(step)]);
      for (const double loss : merged.losses.back()) sum += loss;
    }
    merged.mean_loss = sum / static_cast<double>(world * accumulation);
    result.steps.push_back(std::move(merged));
  }
  return result;
}

}  // namespace deepspeed::conformance
