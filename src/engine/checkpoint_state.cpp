#include "engine/checkpoint_state.h"

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/text.h"
#include "checkpoint/load.h"
#include "comm/agreement.h"
#include "deepspeed/error.h"
#include "engine/shard_check.h"
#include "optim/state_names.h"

namespace deepspeed::engine {
namespace {

using Json = nlohmann::ordered_json;

checkpoint::Image image_of(EngineImpl& engine) {
  checkpoint::Image image;
  image.state_names = engine.state_names();
  for (const auto& name : image.state_names) image.state_aliases.push_back(optim::names_of_state(name));
  for (const auto& state : engine.unit_states())
    image.units.push_back({&state.unit->layout(), state.parameter, state.unit->trainable(), state.states});
  for (const auto& buffer : engine.buffers()) image.buffers.push_back({buffer.name, buffer.tensor});
  return image;
}

std::string run_json(EngineImpl& engine) {
  const Progress& p = engine.progress();
  Json run;
  run["global_steps"] = p.global_steps;
  run["skipped_steps"] = p.skipped_steps;
  run["micro_steps"] = p.micro_steps;
  run["global_samples"] = p.global_samples;
  run["optimizer_steps"] = p.optimizer_steps;
  run["optimizer"] = engine.config().optimizer.type;
  run["schedule"] = Json::parse(engine.schedule()->state_json());
  Json rates = Json::array();
  for (const auto& group : engine.rates()) {
    Json entry{{"lr", group.lr}};
    if (group.betas) entry["betas"] = {group.betas->first, group.betas->second};
    rates.push_back(std::move(entry));
  }
  run["rates"] = std::move(rates);
  if (engine.scaler()) run["loss_scale"] = Json::parse(engine.scaler()->state_json());
  run["config"] = Json::parse(engine.config().source_json);
  run["library_version"] = DEEPSPEED_VERSION;
  return run.dump();
}

void restore_run(EngineImpl& engine, const std::string& text, const std::string& path) {
  try {
    const Json run = Json::parse(text);
    Progress p;
    p.global_steps = run.at("global_steps");
    p.skipped_steps = run.at("skipped_steps");
    p.micro_steps = run.at("micro_steps");
    // Gradients of an accumulation under way are not in a checkpoint, and this run may accumulate over another number: it begins a fresh one.
    p.micro_steps -= p.micro_steps % engine.config().gradient_accumulation_steps;
    p.global_samples = run.at("global_samples");
    p.optimizer_steps = run.at("optimizer_steps");
    const Json& rates = run.at("rates");
    if (rates.size() != engine.rates().size()) {
      throw Error(ErrorCode::kCheckpointMismatch, "checkpoint",
                  base::str(path, ": parameter groups: got ", rates.size(), " in the checkpoint, allowed the ", engine.rates().size(),
                            " of this run"));
    }
    for (size_t g = 0; g < rates.size(); ++g) {
      auto& group = engine.mutable_rates()[g];
      group.lr = rates[g].at("lr");
      if (rates[g].contains("betas")) group.betas = std::make_pair(rates[g]["betas"][0].get<double>(), rates[g]["betas"][1].get<double>());
    }
    engine.schedule()->load_state_json(run.at("schedule").dump());
    // A checkpoint of another precision has none: the scale starts afresh.
    if (engine.scaler() && run.contains("loss_scale")) engine.scaler()->load_state_json(run["loss_scale"].dump());
    engine.progress() = p;
  } catch (const Json::exception& error) {
    throw Error(ErrorCode::kCheckpointDamaged, "checkpoint", base::str(path, ": run state: ", error.what()));
  }
}

// All ranks must save under one name; what happens otherwise is the configuration's choice.
void validate_tag(EngineImpl& engine, const std::string& tag) {
  using Mode = Config::Checkpoint::TagValidation;
  const Mode mode = engine.config().checkpoint.tag_validation;
  const std::string first = comm::broadcast_text(engine.communicator(), tag, 0, "checkpoint tag", engine.device_probe());
  if (mode == Mode::kIgnore) return;
  std::string error;
  if (first != tag) error = base::str("tag: got \"", tag, "\", rank 0 has \"", first, "\"");
  if (mode == Mode::kFail) {
    comm::agree_on_success(engine.communicator(), error, ErrorCode::kUsage, "checkpoint", "save", engine.device_probe());
  } else if (!error.empty()) {
    base::log_warning("save_checkpoint: ", error, "; the name of rank 0 is used");
  }
}

}  // namespace

std::string save_engine(EngineImpl& engine, const std::string& directory, const std::string& tag, const std::string& client_state,
                        const SaveOptions& options) {
  std::string name = tag.empty() ? base::str("global_step", engine.progress().global_steps) : tag;
  validate_tag(engine, name);
  name = comm::broadcast_text(engine.communicator(), name, 0, "checkpoint tag", engine.device_probe());
  checkpoint::Image image = image_of(engine);
  image.run_json = run_json(engine);
  image.client_json = client_state;
  return engine.saver().save({directory, name, options.keep_last}, image, options.async);
}

LoadedCheckpoint load_engine(EngineImpl& engine, const std::string& directory, const std::string& tag, const LoadOptions& options) {
  engine.saver().wait();
  // Shards may lie where all ranks read them: nobody is still computing with the old values when the first is overwritten.
  engine.communicator().barrier("before loading");
  compare_layouts(engine.communicator(), describe_units(engine.units()), "before loading", engine.device_probe());
  checkpoint::Image image = image_of(engine);
  const checkpoint::LoadRequest request{directory, tag, engine.config().checkpoint.load_universal, options.fallback};
  const auto loaded = checkpoint::load(engine.communicator(), request, image, engine.device_probe());
  restore_run(engine, loaded.run_json, loaded.path);
  engine.publish_loaded_state();
  return {loaded.path, loaded.client_json, loaded.damage};
}

}  // namespace deepspeed::engine
