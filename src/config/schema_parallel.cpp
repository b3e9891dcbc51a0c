// Rows: recomputation, model parallelism, compilation, elasticity and tuning.
#include "config/schema.h"

namespace deepspeed::config {

namespace {

using enum Type;
using enum Status;

constexpr std::string_view kRecompute = "activation checkpointing";
constexpr std::string_view kPipeline = "pipeline parallelism";
constexpr std::string_view kTensor = "tensor parallelism";
constexpr std::string_view kExpert = "expert parallelism";
constexpr std::string_view kCompile = "graph compilation";
constexpr std::string_view kHybrid = "hybrid engine";
constexpr std::string_view kElastic = "elasticity";
constexpr std::string_view kTuning = "autotuning";

constexpr Key kRows[] = {
    {"activation_checkpointing", kSection, "", "", kBuilt, "", "", "Recomputation of activations in backward."},
    {"activation_checkpointing.partition_activations", kBool, "false", "", kNotBuilt, kRecompute, "",
     "Split saved inputs over model-parallel ranks."},
    {"activation_checkpointing.number_checkpoints", kInteger, "", "> 0", kDetail, kRecompute, "", "Saved inputs per pass."},
    {"activation_checkpointing.contiguous_memory_optimization", kBool, "false", "", kNotBuilt, kRecompute, "",
     "One buffer; needs partition_activations and number_checkpoints."},
    {"activation_checkpointing.cpu_checkpointing", kBool, "false", "", kNotBuilt, kRecompute, "", "Saved inputs on the host."},
    {"activation_checkpointing.synchronize_checkpoint_boundary", kBool, "false", "", kNotBuilt, kRecompute, "", "Wait for the device."},
    {"activation_checkpointing.profile", kBool, "false", "", kNotBuilt, kRecompute, "", "Time it."},

    {"pipeline", kSection, "", "", kBuilt, "", "", "Settings of pipeline modules."},
    {"pipeline.stages", kAny, "\"auto\"", "", kDetail, kPipeline, "", "Number of stages."},
    {"pipeline.partition", kText, "\"best\"", "", kDetail, kPipeline, "", "How layers are spread."},
    {"pipeline.seed_layers", kBool, "false", "", kDetail, kPipeline, "", "A seed per layer."},
    {"pipeline.activation_checkpoint_interval", kInteger, "0", ">= 0", kDetail, kPipeline, "", "Layers between saved activations."},
    {"pipeline.pipe_partitioned", kBool, "true", "", kDetail, kPipeline, "", "Slice activations over model-parallel ranks."},
    {"pipeline.grad_partitioned", kBool, "true", "", kDetail, kPipeline, "", "Slice their gradients."},
    {"pipeline.use_reentrant", kBool, "", "", kDetail, kPipeline, "", "Kind of recomputation."},

    {"tensor_parallel", kSection, "", "", kBuilt, "", "", "Automatic sharding of Linear layers.", kTyped},
    {"tensor_parallel.autotp_size", kInteger, "0", ">= 0", kNotBuilt, kTensor, "", "Ranks that share a layer; 0: off."},
    {"tensor_parallel.tp", kSection, "", "", kBuilt, "", "", "Sizes."},
    {"tensor_parallel.tp.tp_size", kInteger, "1", "> 0", kNotBuilt, kTensor, "", "Ranks that share a layer."},
    {"tensor_parallel.tp.tp_grain_size", kInteger, "1", "> 0", kDetail, kTensor, "", "Widths are multiples of this."},
    {"tensor_parallel.tp.mpu", kAny, "null", "", kDetail, kTensor, "", "Object of the caller."},
    {"tensor_parallel.tp.tp_group", kAny, "null", "", kDetail, kTensor, "", "Object of the caller."},
    {"tensor_parallel.dtype", kText, "\"fp16\"", "", kDetail, kTensor, "", "Type of weights."},
    {"tensor_parallel.tp_overlap_comm", kBool, "false", "", kDetail, kTensor, "", "Overlap collectives."},
    {"tensor_parallel.injection_policy_tuple", kAny, "null", "", kDetail, kTensor, "", "Layers by hand."},
    {"tensor_parallel.keep_module_on_host", kBool, "false", "", kDetail, kTensor, "", "Keep the whole model on the host."},
    {"tensor_parallel.replace_with_kernel_inject", kBool, "false", "", kDetail, kTensor, "", "Inference kernels."},
    {"tensor_parallel.preset_model", kChoice, "", "llama | bloom | chatglm | mixtral | deepseek_v2 | qwen2 | phi3", kDetail, kTensor,
     "0.19", "Known layout."},
    {"tensor_parallel.partition_config", kSection, "null", "", kDetail, kTensor, "0.19", "Layout by rules."},
    {"tensor_parallel.partition_config.use_default_specs", kBool, "true", "", kDetail, kTensor, "0.19", "Start from the known layout."},
    {"tensor_parallel.partition_config.layer_specs", kAny, "[]", "", kDetail, kTensor, "0.19", "Rules."},

    {"expert_parallel", kSection, "", "", kBuilt, "", "0.19", "Automatic expert parallelism."},
    {"expert_parallel.enabled", kBool, "false", "", kNotBuilt, kExpert, "0.19", "Switch."},
    {"expert_parallel.autoep_size", kInteger, "1", "> 0", kDetail, kExpert, "0.19", "Ranks that share the experts."},
    {"expert_parallel.expert_tensor_parallel_size", kInteger, "1", "> 0", kDetail, kExpert, "0.19", "Only 1."},
    {"expert_parallel.preset_model", kChoice, "", "mixtral | qwen3_moe | qwen3_5_moe | deepseek_v2 | deepseek_v3", kDetail, kExpert, "0.19",
     "Known layout."},
    {"expert_parallel.*", kAny, "", "", kDetail, kExpert, "0.19", "Layout and routing by hand."},

    {"compile", kSection, "", "", kBuilt, "", "", "Graph compiler.", kTyped},
    {"compile.deepcompile", kBool, "false", "", kNotBuilt, kCompile, "", "Switch."},
    {"compile.free_activation", kBool, "false", "", kDetail, kCompile, "", "Free activations early."},
    {"compile.free_activation_threshold", kInteger, "10485760", ">= 0", kDetail, kCompile, "", "Bytes from which on."},
    {"compile.offload_activation", kBool, "false", "", kDetail, kCompile, "", "Activations on the host."},
    {"compile.offload_activation_pin_memory", kBool, "true", "", kDetail, kCompile, "0.19", "Page-locked memory."},
    {"compile.offload_opt_states", kBool, "false", "", kDetail, kCompile, "", "Optimizer states on the host."},
    {"compile.double_buffer", kBool, "true", "", kDetail, kCompile, "", "Two buffers."},
    {"compile.symmetric_memory", kBool, "false", "", kDetail, kCompile, "", "Symmetric memory."},
    {"compile.debug_log", kBool, "false", "", kDetail, kCompile, "", "Log graphs."},
    {"compile.offload_parameters", kBool, "false", "", kDetail, kCompile, "", "Parameters on the host."},
    {"compile.sync_before_reduce", kBool, "false", "", kDetail, kCompile, "", "Wait for the device."},
    {"compile.sync_after_reduce", kBool, "false", "", kDetail, kCompile, "", "Wait for the device."},
    {"compile.sync_before_allgather", kBool, "false", "", kDetail, kCompile, "", "Wait for the device."},
    {"compile.sync_after_allgather", kBool, "false", "", kDetail, kCompile, "", "Wait for the device."},
    {"compile.keep_int_input_tensors", kBool, "true", "", kDetail, kCompile, "", "Keep inputs of integer type."},
    {"compile.keep_all_input_tensors", kBool, "false", "", kDetail, kCompile, "", "Keep all inputs."},
    {"compile.passes", kTextList, "null", "", kDetail, kCompile, "0.19", "Passes: z1, z3, autosp, autotp."},

    {"hybrid_engine", kSection, "", "", kBuilt, "", "", "Training and generation in turn.", kTyped},
    {"hybrid_engine.enabled", kBool, "false", "", kNotBuilt, kHybrid, "", "Switch."},
    {"hybrid_engine.max_out_tokens", kInteger, "512", "> 0", kDetail, kHybrid, "", "Longest answer."},
    {"hybrid_engine.inference_tp_size", kInteger, "1", "> 0", kDetail, kHybrid, "", "Ranks that share a layer."},
    {"hybrid_engine.release_inference_cache", kBool, "false", "", kDetail, kHybrid, "", "Free the cache."},
    {"hybrid_engine.pin_parameters", kBool, "true", "", kDetail, kHybrid, "", "Page-locked parameters."},
    {"hybrid_engine.tp_gather_partition_size", kInteger, "8", "> 0", kDetail, kHybrid, "", "Layers per gather."},
    {"hybrid_engine.enable_cuda_graph", kBool, "false", "", kDetail, kHybrid, "0.19", "CUDA graphs."},

    {"elasticity", kSection, "", "", kBuilt, "", "", "Batch sizes for a changing number of ranks."},
    {"elasticity.enabled", kBool, "false", "", kNotBuilt, kElastic, "", "Switch."},
    {"elasticity.max_train_batch_size", kInteger, "2000", "> 0", kDetail, kElastic, "", "Largest batch."},
    {"elasticity.micro_batch_sizes", kIntegerList, "[2, 4, 6]", "> 0", kDetail, kElastic, "", "Micro batches to choose from."},
    {"elasticity.min_gpus", kInteger, "1", "> 0", kDetail, kElastic, "", "Fewest ranks."},
    {"elasticity.max_gpus", kInteger, "10000", "> 0", kDetail, kElastic, "", "Most ranks."},
    {"elasticity.min_time", kInteger, "0", ">= 0", kDetail, kElastic, "", "Minutes between changes."},
    {"elasticity.version", kNumber, "0.2", "0 .. 0.2", kDetail, kElastic, "", "0.1 or 0.2."},
    {"elasticity.num_gpus_per_node", kInteger, "1", "> 0", kDetail, kElastic, "", "Ranks per node."},
    {"elasticity.model_parallel_size", kInteger, "1", "> 0", kDetail, kElastic, "", "Model-parallel ranks."},
    {"elasticity.prefer_larger_batch", kBool, "true", "", kDetail, kElastic, "", "Of equals take the larger."},
    {"elasticity.ignore_non_elastic_batch_info", kBool, "false", "", kDetail, kElastic, "", "Override the batch keys."},

    {"autotuning", kSection, "", "", kBuilt, "", "", "Search for good settings."},
    {"autotuning.enabled", kBool, "false", "", kNotBuilt, kTuning, "", "Switch."},
    {"autotuning.fast", kBool, "true", "", kDetail, kTuning, "", "Micro batches only."},
    {"autotuning.results_dir", kText, "\"autotuning_results\"", "", kDetail, kTuning, "", "Folder of results."},
    {"autotuning.exps_dir", kText, "\"autotuning_exps\"", "", kDetail, kTuning, "", "Folder of experiments."},
    {"autotuning.overwrite", kBool, "true", "", kDetail, kTuning, "", "Replace old results."},
    {"autotuning.start_profile_step", kInteger, "3", ">= 0", kDetail, kTuning, "", "First measured step."},
    {"autotuning.end_profile_step", kInteger, "5", ">= 0", kDetail, kTuning, "", "Last measured step."},
    {"autotuning.start_step", kInteger, "", "", kNoEffect, "the documented name is not read; start_profile_step is", "", "Not read."},
    {"autotuning.end_step", kInteger, "", "", kNoEffect, "the documented name is not read; end_profile_step is", "", "Not read."},
    {"autotuning.metric", kChoice, "\"throughput\"", "latency | throughput | flops | forward | step", kDetail, kTuning, "",
     "What is best."},
    {"autotuning.metric_path", kText, "null", "", kDetail, kTuning, "", "Internal."},
    {"autotuning.model_info_path", kText, "null", "", kDetail, kTuning, "", "Internal."},
    {"autotuning.tuner_type", kChoice, "\"gridsearch\"", "gridsearch | random | model_based", kDetail, kTuning, "", "Kind of search."},
    {"autotuning.tuner_early_stopping", kInteger, "5", "> 0", kDetail, kTuning, "", "Experiments without gain."},
    {"autotuning.tuner_num_trials", kInteger, "50", "> 0", kDetail, kTuning, "", "Most experiments."},
    {"autotuning.arg_mappings", kAny, "null", "", kDetail, kTuning, "", "Keys as flags of the script."},
    {"autotuning.model_info", kAny, "null", "", kDetail, kTuning, "", "Sizes of the model."},
    {"autotuning.mp_size", kInteger, "1", "> 0", kDetail, kTuning, "", "Model-parallel ranks."},
    {"autotuning.max_train_batch_size", kInteger, "null", "> 0", kDetail, kTuning, "", "Largest batch."},
    {"autotuning.min_train_batch_size", kInteger, "1", "> 0", kDetail, kTuning, "", "Smallest batch."},
    {"autotuning.max_train_micro_batch_size_per_gpu", kInteger, "1024", "> 0", kDetail, kTuning, "", "Largest micro batch."},
    {"autotuning.min_train_micro_batch_size_per_gpu", kInteger, "1", "> 0", kDetail, kTuning, "", "Smallest micro batch."},
    {"autotuning.num_tuning_micro_batch_sizes", kInteger, "3", "> 0", kDetail, kTuning, "", "Micro batches to try."},
};

}  // namespace

std::span<const Key> schema_parallel() { return kRows; }

}  // namespace deepspeed::config
