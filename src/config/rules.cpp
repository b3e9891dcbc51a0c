#include "config/rules.h"

#include "base/text.h"
#include "config/schema.h"
#include "config/value.h"

namespace deepspeed::config {

namespace {

using base::str;
using Kind = ConfigIssue::Kind;

bool on(const Settings& settings, const char* path) { return settings.has(path) && settings.get(path) == true; }

void precision(Settings& settings, int64_t stage) {
  const bool half = on(settings, "fp16.enabled"), brain = on(settings, "bf16.enabled");
  if (half && brain) settings.refuse(Kind::kConflict, "fp16.enabled", "got true beside bf16.enabled true, allowed one of the two");
  if (on(settings, "amp.enabled") && half)
    settings.refuse(Kind::kConflict, "amp.enabled", "got true beside fp16.enabled true, allowed one of the two");
  if (on(settings, "amp.enabled") && brain)
    settings.refuse(Kind::kConflict, "amp.enabled", "got true beside bf16.enabled true, allowed one of the two");
  if (on(settings, "amp.enabled") && stage > 0) {
    settings.refuse(Kind::kConflict, "amp.enabled", str("got true beside zero_optimization.stage ", stage, ", allowed with stage 0 only"));
  }
  if (on(settings, "torch_autocast.enabled") && (half || brain)) {
    settings.refuse(Kind::kConflict, "torch_autocast.enabled",
                    str("got true beside ", half ? "fp16" : "bf16", ".enabled true, allowed one of the two"));
  }
  for (const char* path : {"fp16.fp16_master_weights_and_grads", "bf16.bf16_master_weights_and_grads"}) {
    if (on(settings, path) && stage == 0)
      settings.refuse(Kind::kConflict, path, "got true with zero_optimization.stage 0, allowed in stages 1 to 3");
  }
  if (on(settings, "bf16.bf16_optimizer_states") && !on(settings, "bf16.bf16_master_weights_and_grads")) {
    settings.refuse(Kind::kConflict, "bf16.bf16_optimizer_states", "got true, allowed with bf16.bf16_master_weights_and_grads true only");
  }
  // Their own status is "detail": they may stand in a file whose fp16 is off.
  for (const char* path : {"fp16.auto_cast", "fp16.fp16_master_weights_and_grads"}) {
    if (!half || !on(settings, path)) continue;
    const std::string feature(find_key(path)->about);
    settings.issues.push_back(
        {Kind::kNotBuilt, path, str("got true with fp16.enabled; this version has no ", feature, ", allowed false"), feature});
  }
  const int64_t power = settings.integer("fp16.initial_scale_power"), least = settings.integer("fp16.min_loss_scale");
  if (power < 62 && least > (int64_t{1} << power)) {
    settings.notes.push_back(str("fp16.min_loss_scale: ", least, " is above the first scale, 2 to the power ", power));
  }
}

void gradients(Settings& settings, int64_t stage) {
  if (stage != 2 || !settings.flag("zero_optimization.reduce_scatter")) return;
  if (settings.flag("prescale_gradients")) {
    settings.refuse(Kind::kConflict, "prescale_gradients",
                    "got true in stage 2 with zero_optimization.reduce_scatter, allowed false, or reduce_scatter false");
  }
  if (settings.number("gradient_predivide_factor") != 1.0) {
    settings.refuse(Kind::kConflict, "gradient_predivide_factor",
                    str("got ", shown(settings.get("gradient_predivide_factor")),
                        " in stage 2 with zero_optimization.reduce_scatter, allowed 1, or reduce_scatter false"));
  }
}

void offload(Settings& settings, int64_t stage) {
  const struct {
    const char* old_key;
    const char* section;
  } replaced[] = {{"zero_optimization.cpu_offload", "zero_optimization.offload_optimizer"},
                  {"zero_optimization.cpu_offload_param", "zero_optimization.offload_param"}};
  for (const auto& pair : replaced) {
    if (!settings.has(pair.old_key)) continue;
    settings.notes.push_back(str(pair.old_key, ": deprecated, write ", pair.section));
    if (settings.has(pair.section)) {
      settings.refuse(Kind::kConflict, pair.old_key, str("got it beside ", pair.section, ", allowed only the latter, which replaces it"));
    }
  }
  for (const std::string section : {"zero_optimization.offload_param", "zero_optimization.offload_optimizer"}) {
    const auto device = settings.get(section + ".device");
    if (device == "none") continue;
    if (device == "nvme" && !settings.has(section + ".nvme_path") && !settings.spoiled(section + ".nvme_path")) {
      settings.refuse(Kind::kMissing, section + ".nvme_path", "got none, allowed a folder; device nvme needs it");
    }
    if (stage != 3 && (device == "nvme" || section.ends_with("param"))) {
      settings.refuse(Kind::kConflict, section + ".device", str("got ", shown(device), " in stage ", stage, ", allowed in stage 3 only"));
    }
  }
  if (stage != 3 && settings.number("zero_optimization.offload_optimizer.ratio") < 1.0) {
    settings.refuse(Kind::kConflict, "zero_optimization.offload_optimizer.ratio",
                    str("got ", shown(settings.get("zero_optimization.offload_optimizer.ratio")), " in stage ", stage,
                        ", allowed below 1 in stage 3 only"));
  }
}

void zero(Settings& settings, int64_t stage) {
  if (on(settings, "zero_optimization.legacy_stage1")) {
    settings.refuse(Kind::kBadValue, "zero_optimization.legacy_stage1", "got true, allowed false; DeepSpeed removed this path");
  }
  const int64_t gather = settings.integer("zero_optimization.allgather_bucket_size");
  if ((stage == 1 || stage == 2) && gather % 2 != 0) {
    settings.refuse(Kind::kBadValue, "zero_optimization.allgather_bucket_size",
                    str("got ", gather, ", allowed an even number in stages 1 and 2"));
  }
  if (settings.has("zero_optimization.mics_shard_size") && settings.integer("zero_optimization.mics_shard_size") == 0) {
    settings.refuse(Kind::kOutOfRange, "zero_optimization.mics_shard_size", "got 0, allowed -1 (off) or an integer > 0");
  }
  if (stage == 3) return;
  for (const auto& [path, value] : settings.given) {
    if (!path.starts_with("zero_optimization.stage3_") || value == fallback_of(*find_key(path))) continue;
    settings.notes.push_back(str(path, ": has no effect in stage ", stage, ", only in stage 3"));
  }
}

void other_sections(Settings& settings) {
  const std::string checkpointing = "activation_checkpointing.";
  if (on(settings, "activation_checkpointing.contiguous_memory_optimization") &&
      !(on(settings, "activation_checkpointing.partition_activations") && settings.has(checkpointing + "number_checkpoints"))) {
    settings.refuse(Kind::kConflict, checkpointing + "contiguous_memory_optimization",
                    "got true, allowed with partition_activations true and number_checkpoints set");
  }
  if (on(settings, "elasticity.enabled")) {
    for (const char* needed : {"elasticity.max_train_batch_size", "elasticity.micro_batch_sizes"}) {
      if (!settings.has(needed) && !settings.spoiled(needed))
        settings.refuse(Kind::kMissing, needed, "got none, allowed a value; elasticity needs it");
    }
    for (const char* batch : {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}) {
      if (settings.has(batch) && !on(settings, "elasticity.ignore_non_elastic_batch_info")) {
        settings.refuse(Kind::kConflict, batch,
                        "got a value although elasticity chooses it, allowed with ignore_non_elastic_batch_info only");
      }
    }
  }
  for (const char* folder : {"autotuning.results_dir", "autotuning.exps_dir"}) {
    if (settings.get(folder) == "") settings.refuse(Kind::kBadValue, folder, "got \"\", allowed the name of a folder");
  }
  const std::string sampling = "data_efficiency.data_sampling.";
  if (on(settings, (sampling + "curriculum_learning.enabled").c_str()) &&
      !settings.has(sampling + "curriculum_learning.curriculum_metrics")) {
    settings.refuse(Kind::kMissing, sampling + "curriculum_learning.curriculum_metrics",
                    "got none, allowed an object with a metric or more");
  }
  if (on(settings, (sampling + "dynamic_batching.enabled").c_str()) && !settings.has(sampling + "dynamic_batching.max_tokens")) {
    settings.refuse(Kind::kMissing, sampling + "dynamic_batching.max_tokens", "got none, allowed an integer > 0");
  }
  if (settings.has("vocabulary_size") && settings.integer("vocabulary_size") % 8 != 0) {
    settings.notes.push_back(
        str("vocabulary_size: ", settings.integer("vocabulary_size"), " is not a multiple of 8, which is slow on tensor cores"));
  }
}

}  // namespace

void check_rules(Settings& settings) {
  if (!settings.spoiled("zero_optimization.stage")) {
    const int64_t stage = settings.integer("zero_optimization.stage");
    precision(settings, stage);
    gradients(settings, stage);
    offload(settings, stage);
    zero(settings, stage);
  }
  other_sections(settings);
}

}  // namespace deepspeed::config
