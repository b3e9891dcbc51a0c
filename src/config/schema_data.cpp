// Rows: data efficiency and curriculum learning.
#include "config/schema.h"

namespace deepspeed::config {

namespace {

using enum Type;
using enum Status;

constexpr std::string_view kCurriculum = "curriculum learning";
constexpr std::string_view kEfficiency = "data efficiency";
constexpr std::string_view kSampling = "data sampling";
constexpr std::string_view kDynamic = "dynamic batching";
constexpr std::string_view kRandomLtd = "random layer-token drop";
constexpr std::string_view kLayerDrop = "progressive layer drop";
constexpr std::string_view kPaces = "fixed_linear | fixed_root | fixed_discrete | custom";

constexpr Key kRows[] = {
    {"curriculum_learning", kSection, "", "", kBuilt, "", "", "Easy samples first (old section)."},
    {"curriculum_learning.enabled", kBool, "false", "", kNotBuilt, kCurriculum, "", "Switch."},
    {"curriculum_learning.curriculum_type", kText, "", "", kDetail, kCurriculum, "", "What counts as difficult: seqlen."},
    {"curriculum_learning.min_difficulty", kInteger, "", "> 0", kDetail, kCurriculum, "", "Start."},
    {"curriculum_learning.max_difficulty", kInteger, "", "> 0", kDetail, kCurriculum, "", "End."},
    {"curriculum_learning.schedule_type", kChoice, "", kPaces, kDetail, kCurriculum, "", "Pace."},
    {"curriculum_learning.schedule_config", kSection, "", "", kDetail, kCurriculum, "", "Settings of the pace."},
    {"curriculum_learning.schedule_config.total_curriculum_step", kInteger, "", "> 0", kDetail, kCurriculum, "", "Steps to the end."},
    {"curriculum_learning.schedule_config.difficulty_step", kInteger, "", "> 0", kDetail, kCurriculum, "", "Step of difficulty."},
    {"curriculum_learning.schedule_config.root_degree", kInteger, "", "> 0", kDetail, kCurriculum, "", "fixed_root: degree."},
    {"curriculum_learning.schedule_config.difficulty", kIntegerList, "", "> 0", kDetail, kCurriculum, "", "fixed_discrete: levels."},
    {"curriculum_learning.schedule_config.max_step", kIntegerList, "", "> 0", kDetail, kCurriculum, "",
     "fixed_discrete: last step of each."},

    {"data_efficiency", kSection, "", "", kBuilt, "", "", "Choice of samples and tokens."},
    {"data_efficiency.enabled", kBool, "false", "", kNotBuilt, kEfficiency, "", "Switch."},
    {"data_efficiency.seed", kInteger, "1234", "", kDetail, kEfficiency, "", "Seed."},
    {"data_efficiency.data_sampling", kSection, "", "", kBuilt, "", "", "Choice of samples."},
    {"data_efficiency.data_sampling.enabled", kBool, "false", "", kNotBuilt, kSampling, "", "Switch."},
    {"data_efficiency.data_sampling.num_epochs", kInteger, "1000", "> 0", kDetail, kSampling, "", "Epochs."},
    {"data_efficiency.data_sampling.num_workers", kInteger, "0", ">= 0", kDetail, kSampling, "", "Workers."},
    {"data_efficiency.data_sampling.pin_memory", kBool, "false", "", kDetail, kSampling, "", "Page-locked memory."},
    {"data_efficiency.data_sampling.curriculum_learning", kSection, "", "", kBuilt, "", "", "Easy samples first."},
    {"data_efficiency.data_sampling.curriculum_learning.enabled", kBool, "false", "", kNotBuilt, kCurriculum, "", "Switch."},
    {"data_efficiency.data_sampling.curriculum_learning.data_cluster_path", kText, "", "", kDetail, kCurriculum, "", "Folder of clusters."},
    {"data_efficiency.data_sampling.curriculum_learning.curriculum_metrics", kSection, "", "", kDetail, kCurriculum, "",
     "Metrics by name."},
    {"data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*", kAny, "", "", kDetail, kCurriculum, "", "One metric."},
    {"data_efficiency.data_sampling.dynamic_batching", kSection, "", "", kBuilt, "", "", "Batches by tokens."},
    {"data_efficiency.data_sampling.dynamic_batching.enabled", kBool, "false", "", kNotBuilt, kDynamic, "", "Switch."},
    {"data_efficiency.data_sampling.dynamic_batching.metrics_path", kText, "", "", kDetail, kDynamic, "", "Folder of lengths."},
    {"data_efficiency.data_sampling.dynamic_batching.lr_scaling_method", kChoice, "\"linear\"", "linear | sqrt | none", kDetail, kDynamic,
     "", "Rate by batch size."},
    {"data_efficiency.data_sampling.dynamic_batching.min_batch_size", kInteger, "1", "> 0", kDetail, kDynamic, "", "Smallest batch."},
    {"data_efficiency.data_sampling.dynamic_batching.max_batch_size", kInteger, "", "> 0", kDetail, kDynamic, "", "Largest batch."},
    {"data_efficiency.data_sampling.dynamic_batching.sequence_picking_order", kChoice, "\"dataloader\"", "dataloader | random | seqlen",
     kDetail, kDynamic, "", "Order of samples."},
    {"data_efficiency.data_sampling.dynamic_batching.max_tokens", kInteger, "", "> 0", kDetail, kDynamic, "", "Tokens per batch."},
    {"data_efficiency.data_sampling.dynamic_batching.verbose", kBool, "false", "", kDetail, kDynamic, "", "Log batches."},
    {"data_efficiency.data_routing", kSection, "", "", kBuilt, "", "", "Choice of tokens."},
    {"data_efficiency.data_routing.enabled", kBool, "false", "", kNotBuilt, "data routing", "", "Switch."},
    {"data_efficiency.data_routing.random_ltd", kSection, "", "", kBuilt, "", "", "Random layer-token drop."},
    {"data_efficiency.data_routing.random_ltd.enabled", kBool, "false", "", kNotBuilt, kRandomLtd, "", "Switch."},
    {"data_efficiency.data_routing.random_ltd.total_layer_num", kInteger, "", "> 0", kDetail, kRandomLtd, "", "Layers."},
    {"data_efficiency.data_routing.random_ltd.random_ltd_layer_num", kInteger, "", ">= 0", kDetail, kRandomLtd, "", "Layers that drop."},
    {"data_efficiency.data_routing.random_ltd.random_ltd_layer_id", kIntegerList, "", ">= 0", kDetail, kRandomLtd, "", "Which ones."},
    {"data_efficiency.data_routing.random_ltd.model_mask_name", kText, "", "", kDetail, kRandomLtd, "", "Name of the mask."},
    {"data_efficiency.data_routing.random_ltd.model_type", kChoice, "", "encoder | decoder", kDetail, kRandomLtd, "", "Kind of model."},
    {"data_efficiency.data_routing.random_ltd.hidden_state_order", kChoice, "", "batch_seq_dim | seq_batch_dim", kDetail, kRandomLtd, "",
     "Layout."},
    {"data_efficiency.data_routing.random_ltd.random_ltd_schedule", kSection, "", "", kDetail, kRandomLtd, "", "Pace."},
    {"data_efficiency.data_routing.random_ltd.random_ltd_schedule.min_value", kInteger, "", "> 0", kDetail, kRandomLtd, "", "Start."},
    {"data_efficiency.data_routing.random_ltd.random_ltd_schedule.max_value", kInteger, "", "> 0", kDetail, kRandomLtd, "", "End."},
    {"data_efficiency.data_routing.random_ltd.random_ltd_schedule.schedule_type", kChoice, "", "fixed_linear", kDetail, kRandomLtd, "",
     "Pace."},
    {"data_efficiency.data_routing.random_ltd.random_ltd_schedule.schedule_config", kSection, "", "", kDetail, kRandomLtd, "",
     "Settings of it."},
    {"data_efficiency.data_routing.random_ltd.random_ltd_schedule.schedule_config.seq_per_step", kInteger, "", "> 0", kDetail, kRandomLtd,
     "", "Step."},
    {"data_efficiency.data_routing.random_ltd.random_ltd_schedule.schedule_config.require_steps", kInteger, "", "> 0", kDetail, kRandomLtd,
     "", "Steps."},
    {"data_efficiency.data_routing.random_ltd.layer_token_lr_schedule", kSection, "", "", kBuilt, "", "", "Rate by tokens."},
    {"data_efficiency.data_routing.random_ltd.layer_token_lr_schedule.enabled", kBool, "false", "", kNotBuilt, "layer-token rate schedule",
     "", "Switch."},
    {"data_efficiency.data_routing.random_ltd.layer_token_lr_schedule.*", kAny, "", "", kDetail, "layer-token rate schedule", "",
     "Settings of it."},

    {"progressive_layer_drop", kSection, "", "", kBuilt, "", "", "Drop layers at random, more and more."},
    {"progressive_layer_drop.enabled", kBool, "false", "", kNotBuilt, kLayerDrop, "", "Switch."},
    {"progressive_layer_drop.theta", kNumber, "1.0", "0 .. 1", kDetail, kLayerDrop, "", "Least probability to keep."},
    {"progressive_layer_drop.gamma", kNumber, "0.001", ">= 0", kDetail, kLayerDrop, "", "Pace."},
};

}  // namespace

std::span<const Key> schema_data() { return kRows; }

}  // namespace deepspeed::config
