// Rows: ZeRO, offload and file transfer.
#include "config/schema.h"

namespace deepspeed::config {

namespace {

using enum Type;
using enum Status;

constexpr std::string_view kFlat = "each unit's parameters and gradients live in one flat buffer already";
constexpr std::string_view kUnits = "parameters are gathered by unit when an operator touches them";
constexpr std::string_view kPlusPlus = "ZeRO++";
constexpr std::string_view kMics = "MiCS";
constexpr std::string_view kOptimizer = "optimizer offload";
constexpr std::string_view kParameter = "parameter offload";
constexpr std::string_view kZenFlow = "ZenFlow";

constexpr Key kRows[] = {
    {"zero_optimization", kSection, "", "", kBuilt, "", "", "ZeRO. true and false are old spellings of stage 1 and 0.", kTyped},
    {"zero_optimization.stage", kInteger, "0", "0 .. 3", kBuilt, "", "",
     "What is sharded: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters.", kBoolIsNumber},
    {"zero_optimization.overlap_comm", kBool, "", "", kBuilt, "", "", "Reduce while backward goes on; unset: true in stage 3 only."},
    {"zero_optimization.reduce_scatter", kBool, "true", "", kBuilt, "", "", "Reduce each slice to its owner only."},
    {"zero_optimization.reduce_bucket_size", kInteger, "500000000", "> 0", kBuilt, "", "", "Elements per reduction."},
    {"zero_optimization.contiguous_gradients", kBool, "true", "", kNoEffect, kFlat, "", "Copy gradients into one buffer."},
    {"zero_optimization.round_robin_gradients", kBool, "false", "", kNoEffect, "every rank owns an equal slice of every unit", "",
     "Deal parameters out to ranks in turn."},
    {"zero_optimization.use_multi_rank_bucket_allreduce", kBool, "true", "", kNoEffect, kFlat, "", "One all-reduce for several owners."},
    {"zero_optimization.allgather_partitions", kBool, "true", "", kBuilt, "", "", "All-gather rather than broadcast after the step."},
    {"zero_optimization.allgather_bucket_size", kInteger, "500000000", "> 0", kNoEffect, "units are gathered whole, straight into place",
     "", "Elements per all-gather; even in stages 1 and 2."},
    {"zero_optimization.ignore_unused_parameters", kBool, "true", "", kBuilt, "", "", "false: an error when a parameter got no gradient."},
    {"zero_optimization.load_from_fp32_weights", kBool, "true", "", kNotBuilt, "masters rebuilt from 16-bit weights", "",
     "Load the fp32 masters of a checkpoint."},
    {"zero_optimization.elastic_checkpoint", kBool, "false", "", kNoEffect, "every checkpoint loads at any number of ranks", "",
     "Optimizer state that does not depend on the number of ranks."},
    {"zero_optimization.legacy_stage1", kBool, "false", "", kBuilt, "", "", "Old stage 1; true is refused, DeepSpeed removed it."},
    {"zero_optimization.enable_sanity_checks", kBool, "false", "", kNoEffect, "ranks are always compared at each step", "",
     "More checks in stage 3."},
    {"zero_optimization.sub_group_size", kInteger, "1000000000", "> 0", kNoEffect, "each unit's shard is stepped in one pass", "",
     "Stage 3: elements per optimizer step."},
    {"zero_optimization.stage3_prefetch_bucket_size", kInteger, "50000000", ">= 0", kBuilt, "", "",
     "Stage 3: elements gathered ahead; 0: none."},
    {"zero_optimization.stage3_param_persistence_threshold", kInteger, "100000", ">= 0", kBuilt, "", "",
     "Stage 3: parameters up to this many elements stay whole."},
    {"zero_optimization.stage3_model_persistence_threshold", kInteger, "9223372036854775807", ">= 0", kBuilt, "", "",
     "Stage 3: most elements that stay whole."},
    {"zero_optimization.stage3_max_live_parameters", kInteger, "1000000000", ">= 0", kBuilt, "", "", "Stage 3: most gathered elements."},
    {"zero_optimization.stage3_max_reuse_distance", kInteger, "1000000000", ">= 0", kBuilt, "", "",
     "Stage 3: keep what is used again within this many elements."},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", kBool, "false", "", kNoEffect,
     "saving a model always gathers its weights", "", "Stage 3: saving 16-bit weights gathers them."},
    {"zero_optimization.stage3_module_granularity_threshold", kInteger, "0", ">= 0", kNoEffect, kUnits, "",
     "Stage 3: small modules are fetched together."},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params", kBool, "false", "", kNoEffect, kUnits, "",
     "Stage 3: fetch by all-reduce."},
    {"zero_optimization.stage3_allgather_sequential", kBool, "false", "", kNotBuilt, "sequential gathering", "0.19",
     "Stage 3: one gather at a time."},
    {"zero_optimization.memory_efficient_linear", kBool, "true", "", kNoEffect, "saved weights are views into units, freed with them", "",
     "Stage 3: Linear keeps no weight for backward."},
    {"zero_optimization.pipeline_loading_checkpoint", kBool, "false", "", kNoEffect, "loading reads each shard directly", "",
     "Stage 3: overlapped loading."},
    {"zero_optimization.override_module_apply", kBool, "true", "", kNoEffect, "interception covers apply()", "",
     "Stage 3: apply() gathers."},
    {"zero_optimization.log_trace_cache_warnings", kBool, "false", "", kNoEffect, "a changed order only costs time", "",
     "Stage 3: tell when the order of modules changed."},
    {"zero_optimization.save_muon_momentum_buffer_in_memory", kBool, "false", "", kNoEffect, "the momentum always stays there", "0.19",
     "Stage 3: Muon's momentum stays on the device."},
    {"zero_optimization.leaf_module", kSection, "", "", kBuilt, "", "", "Modules that are fetched as one."},
    {"zero_optimization.leaf_module.classes", kTextList,
     R"(["transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",)"
     R"("transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",)"
     R"("transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock"])",
     "", kNoEffect, kUnits, "", "By class."},
    {"zero_optimization.leaf_module.names", kTextList, "[]", "", kNoEffect, kUnits, "", "By name."},
    {"zero_optimization.leaf_module.name_suffixes", kTextList, "[]", "", kNoEffect, kUnits, "", "By end of name."},

    {"zero_optimization.zero_hpz_partition_size", kInteger, "1", "> 0", kNotBuilt, kPlusPlus, "", "Ranks of a second sharding."},
    {"zero_optimization.zero_quantized_weights", kBool, "false", "", kNotBuilt, kPlusPlus, "", "Gather weights as int8."},
    {"zero_optimization.zero_quantized_nontrainable_weights", kBool, "false", "", kNotBuilt, kPlusPlus, "", "Frozen weights as int8."},
    {"zero_optimization.zero_quantized_gradients", kBool, "false", "", kNotBuilt, kPlusPlus, "", "Reduce gradients as int4."},
    {"zero_optimization.zeropp_loco_param", kSection, "null", "", kNotBuilt, kPlusPlus, "", "Error feedback of quantized gradients."},
    {"zero_optimization.zeropp_loco_param.err_beta", kNumber, "0.8", "0 .. 1", kDetail, kPlusPlus, "", "Decay of the error."},
    {"zero_optimization.zeropp_loco_param.reset_T", kInteger, "1024", "> 0", kDetail, kPlusPlus, "", "Steps between resets."},
    {"zero_optimization.mics_shard_size", kInteger, "-1", ">= -1", kNotBuilt, kMics, "", "Ranks of a shard group; -1: off."},
    {"zero_optimization.mics_hierarchical_params_gather", kBool, "false", "", kNotBuilt, kMics, "", "Gather in two levels."},

    {"zero_optimization.cpu_offload", kBool, "", "", kNotBuilt, kOptimizer, "", "Old spelling of offload_optimizer on cpu."},
    {"zero_optimization.cpu_offload_param", kBool, "", "", kNotBuilt, kParameter, "", "Old spelling of offload_param on cpu."},
    {"zero_optimization.cpu_offload_use_pin_memory", kBool, "", "", kNoEffect, "old key of offload that DeepSpeed does not read either", "",
     "Old spelling of pin_memory."},
    {"zero_optimization.offload_param", kSection, "null", "", kBuilt, "", "", "Parameters outside the device; stage 3."},
    {"zero_optimization.offload_param.device", kChoice, "\"none\"", "none | cpu | nvme", kNotBuilt, kParameter, "", "Where."},
    {"zero_optimization.offload_param.nvme_path", kText, "null", "", kDetail, kParameter, "", "Folder for nvme."},
    {"zero_optimization.offload_param.buffer_count", kInteger, "5", ">= 0", kDetail, kParameter, "", "Buffers in the pool."},
    {"zero_optimization.offload_param.buffer_size", kInteger, "100000000", ">= 0", kDetail, kParameter, "", "Elements per buffer."},
    {"zero_optimization.offload_param.max_in_cpu", kInteger, "1000000000", ">= 0", kDetail, kParameter, "", "Elements kept on the host."},
    {"zero_optimization.offload_param.pin_memory", kBool, "false", "", kDetail, kParameter, "", "Page-locked memory."},
    {"zero_optimization.offload_optimizer", kSection, "null", "", kBuilt, "", "", "Optimizer outside the device."},
    {"zero_optimization.offload_optimizer.device", kChoice, "\"none\"", "none | cpu | nvme", kNotBuilt, kOptimizer, "",
     "Where; nvme: stage 3."},
    {"zero_optimization.offload_optimizer.nvme_path", kText, "null", "", kDetail, kOptimizer, "", "Folder for nvme."},
    {"zero_optimization.offload_optimizer.buffer_count", kInteger, "4", ">= 0", kDetail, kOptimizer, "", "Buffers in the pool."},
    {"zero_optimization.offload_optimizer.pin_memory", kBool, "false", "", kDetail, kOptimizer, "", "Page-locked memory."},
    {"zero_optimization.offload_optimizer.pipeline_read", kBool, "false", "", kDetail, kOptimizer, "", "Read the next group ahead."},
    {"zero_optimization.offload_optimizer.pipeline_write", kBool, "false", "", kDetail, kOptimizer, "", "Write the last group behind."},
    {"zero_optimization.offload_optimizer.fast_init", kBool, "false", "", kDetail, kOptimizer, "", "Quick start of swapped states."},
    {"zero_optimization.offload_optimizer.ratio", kNumber, "1.0", "0 .. 1", kDetail, kOptimizer, "",
     "Part updated on the host; below 1: stage 3."},
    {"zero_optimization.offload_optimizer.super_offload", kBool, "false", "", kDetail, kOptimizer, "", "Update during backward."},
    {"zero_optimization.offload_optimizer.cpuadam_cores_perc", kNumber, "0.8", "0 .. 1", kDetail, kOptimizer, "", "Cores for that."},

    {"zero_optimization.zenflow", kSection, "null", "", kNotBuilt, kZenFlow, "", "Selective updates with offload."},
    {"zero_optimization.zenflow.topk_ratio", kNumber, "0.1", "0 .. 1", kDetail, kZenFlow, "", "Columns updated at each step."},
    {"zero_optimization.zenflow.select_strategy", kChoice, "\"auto\"", "auto | step | epoch", kDetail, kZenFlow, "",
     "When columns are chosen."},
    {"zero_optimization.zenflow.select_interval", kAny, "\"auto\"", "", kDetail, kZenFlow, "", "How often."},
    {"zero_optimization.zenflow.update_interval", kAny, "\"auto\"", "", kDetail, kZenFlow, "", "Steps between updates of the rest."},
    {"zero_optimization.zenflow.overlap_step", kBool, "false", "", kDetail, kZenFlow, "", "Update behind the device's work."},
    {"zero_optimization.zenflow.offload", kBool, "false", "", kDetail, kZenFlow, "", "Selected states on the host."},
    {"zero_optimization.zenflow.auto_ratio", kNumber, "0.99", "0 .. 1", kDetail, kZenFlow, "", "Threshold of automatic updates."},
    {"zero_optimization.zenflow.full_warm_up_rounds", kInteger, "0", ">= 0", kDetail, kZenFlow, "", "Rounds that update all."},
    {"zero_optimization.zenflow.pt_reserved_cores_perc", kNumber, "0.5", "0 .. 1", kDetail, kZenFlow, "", "Cores left to torch."},

    {"aio", kSection, "", "", kBuilt, "", "", "File transfer of nvme offload."},
    {"aio.block_size", kInteger, "1048576", "> 0", kDetail, "nvme offload", "", "Bytes per request."},
    {"aio.queue_depth", kInteger, "8", "> 0", kDetail, "nvme offload", "", "Requests in flight."},
    {"aio.intra_op_parallelism", kInteger, "1", "> 0", kDetail, "nvme offload", "", "Threads per transfer."},
    {"aio.thread_count", kInteger, "", "> 0", kNoEffect, "the documented name is not read; intra_op_parallelism is", "", "Not read."},
    {"aio.single_submit", kBool, "false", "", kDetail, "nvme offload", "", "One request per call."},
    {"aio.overlap_events", kBool, "true", "", kDetail, "nvme offload", "", "Submit while others complete."},
    {"aio.use_gds", kBool, "false", "", kNotBuilt, "GPUDirect storage", "", "Straight between disk and device."},
};

}  // namespace

std::span<const Key> schema_zero() { return kRows; }

}  // namespace deepspeed::config
