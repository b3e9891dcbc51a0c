// Checkpoints that the real DeepSpeed wrote: loaded at several world sizes, then trained on.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <filesystem>

#include "conformance/families.h"
#include "conformance/train_case.h"
#include "deepspeed/engine.h"
#include "deepspeed/models.h"
#include "deepspeed/safetensors.h"
#include "parameter_groups.h"

namespace deepspeed::conformance {
namespace {

namespace fs = std::filesystem;

// "zero-w2", "universal-w4".
struct Way {
  bool universal = false;
  int world = 2;
};

Way way_of(const std::string& name) { return {name.starts_with("universal"), std::stoi(name.substr(name.rfind('w') + 1))}; }

double loss_tolerance(const std::string& dtype) { return dtype == "fp32" ? 2e-5 : dtype == "bf16" ? 3e-3 : 1e-3; }

struct Resumed {
  std::string error;  // of what was loaded
  TrainResult run;
};

// Loads at `way.world` ranks into a model whose weights were halved, so that a load that restores nothing shows, and trains `further` steps.
Resumed resume(const fs::path& root, const fs::path& directory, const Json& settings, const Way& way, const Json& counters) {
  const int64_t steps = settings.at("steps"), further = settings.at("further"), rows = settings.at("micro_batch").get<int64_t>() * 2;
  const auto tokens = load_safetensors((directory / "tokens.safetensors").string()).at("tokens");
  Json config = read_json(directory / "ds_config.json");
  config["train_micro_batch_size_per_gpu"] = rows / way.world;
  if (way.universal) config["checkpoint"] = {{"load_universal", true}};
  Resumed result;
  std::vector<std::vector<double>> losses(static_cast<size_t>(further), std::vector<double>(static_cast<size_t>(way.world)));
  CommOptions comm;
  comm.timeout = std::chrono::minutes(2);
  run_ranks_as_threads(
      way.world,
      [&](std::shared_ptr<Communicator> communicator) {
        auto model = load_model((root / "models" / settings.at("model").get<std::string>()).string());
        {
          at::NoGradGuard no_grad;
          for (auto& parameter : model->parameters()) parameter.mul_(0.5);
        }
        EngineOptions options;
        options.config_json = config.dump();
        if (settings.contains("parameter_groups")) options.groups = parse_groups(settings["parameter_groups"]);
        options.device = "cpu";
        options.communicator = communicator;
        auto engine = initialize(model, options);
        const auto loaded = engine->load_checkpoint((directory / (way.universal ? "universal" : "zero")).string());
        const auto rank = static_cast<size_t>(communicator->rank());
        if (rank == 0) {
          if (Json::parse(loaded.client_state) != settings.at("client_state")) result.error = "client state: got " + loaded.client_state;
          if (engine->global_steps() != counters.at("global_steps").get<int64_t>()) {
            result.error = "global steps: got " + std::to_string(engine->global_steps());
          }
          if (engine->skipped_steps() != counters.at("skipped_steps").get<int64_t>()) {
            result.error = "skipped steps: got " + std::to_string(engine->skipped_steps());
          }
        }
        const int64_t own = rows / way.world;
        for (int64_t step = 0; step < further; ++step) {
          StepResult seen;
          seen.lr = engine->get_lr();
          seen.momentum = engine->get_mom();
          const int64_t skipped = engine->skipped_steps();
          const auto batch = tokens[steps + step].reshape({rows, -1}).narrow(0, static_cast<int64_t>(rank) * own, own).contiguous();
          auto loss = model->loss(batch);
          losses[static_cast<size_t>(step)][rank] = loss.item().toDouble();
          engine->backward(loss);
          engine->step();
          if (rank != 0) continue;
          seen.grad_norm = engine->get_global_grad_norm();
          seen.skipped = engine->skipped_steps() > skipped;
          seen.loss_scale = engine->loss_scale();
          result.run.steps.push_back(std::move(seen));
        }
      },
      comm);
  for (size_t step = 0; step < losses.size(); ++step) {
    double sum = 0;
    for (const double loss : losses[step]) {
      result.run.steps[step].losses.push_back({loss});
      sum += loss;
    }
    result.run.steps[step].mean_loss = sum / way.world;
  }
  return result;
}

}  // namespace

Outcome run_checkpoint_case(const fs::path& root, const fs::path& directory) {
  const Json settings = read_json(directory / "case.json");
  const Json expected = read_json(directory / "expected.json").at("resumed");
  const fs::path right_file = directory / "right.json";
  const Json right = fs::exists(right_file) ? read_json(right_file).at("resumed") : Json();
  const double loss = loss_tolerance(settings.at("dtype"));
  const Tolerance tolerance{loss, settings.at("dtype") == "fp32" ? 1e-3 : 3e-2, 0, 0};
  std::string which;
  for (const auto& [name, run] : expected.items()) {
    const Resumed got = resume(root, directory, settings, way_of(name), run.at("counters_after_load"));
    if (!got.error.empty()) return Outcome::fail(name + ": " + got.error);
    const std::string difference = compare_steps(got.run, run.at("steps"), tolerance);
    if (difference.empty()) continue;
    if (right.is_null() || !compare_steps(got.run, right.at(name).at("steps"), tolerance).empty()) {
      return Outcome::fail(name + ": " + difference);
    }
    which = "right";
  }
  return Outcome::ok(which);
}

}  // namespace deepspeed::conformance
