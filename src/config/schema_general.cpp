// Rows: batch sizes and other top-level scalars.
#include "config/schema.h"

namespace deepspeed::config {

namespace {

using enum Type;
using enum Status;

constexpr std::string_view kNoClientOptimizer = "optimizers come from the configuration only, so there is nothing to permit or forbid";

constexpr Key kRows[] = {
    {"train_batch_size", kInteger, "", "> 0", kBuilt, "", "", "Samples per optimizer step over all ranks.", kAutoRefused},
    {"train_micro_batch_size_per_gpu", kInteger, "", "> 0", kBuilt, "", "", "Samples per rank and forward pass.", kAutoRefused},
    {"gradient_accumulation_steps", kInteger, "", "> 0", kBuilt, "", "", "Forward passes per optimizer step.", kAutoRefused},
    {"steps_per_print", kInteger, "", "> 0", kBuilt, "", "", "Optimizer steps between progress lines; unset: no lines."},
    {"gradient_clipping", kNumber, "0.0", ">= 0", kBuilt, "", "", "Largest global L2 norm of the gradient; 0: no clipping."},
    {"prescale_gradients", kBool, "false", "", kBuilt, "", "",
     "Divide gradients before they are summed over ranks. Not with stage 2 and reduce_scatter."},
    {"gradient_predivide_factor", kNumber, "1.0", "> 0", kBuilt, "", "",
     "Part of the division by the number of ranks that happens before the sum. Must be 1 with stage 2 and reduce_scatter."},
    {"communication_data_type", kChoiceAnyCase, "", "fp16 | bf16 | fp32", kBuilt, "", "",
     "Type of gradients while they are reduced; unset: that of the gradients."},
    {"dataloader_drop_last", kBool, "false", "", kNoEffect,
     "batches are always full: a pass over the data starts anew before one would not be", "",
     "Leave out the last batch when it is not full."},
    {"wall_clock_breakdown", kBool, "false", "", kBuilt, "", "", "Print the time of forward, backward and step."},
    {"dump_state", kBool, "false", "", kBuilt, "", "", "Print the configuration of the engine at start."},
    {"vocabulary_size", kInteger, "", "> 0", kBuilt, "", "", "Size of the vocabulary; a size that is not a multiple of 8 leaves a note."},
    {"memory_breakdown", kBool, "false", "", kNotBuilt, "memory breakdown", "", "Print memory use beside the times."},
    {"sparse_gradients", kBool, "false", "", kNoEffect,
     "sparse gradients of embeddings are always taken, and summed into the flat buffer that ranks exchange", "",
     "Exchange gradients of embeddings as index and value."},
    {"max_consecutive_skipped_steps", kInteger, "", ">= 0", kBuilt, "", "",
     "Extension. So many skipped steps in a row end the run with an error; 0: never; unset: 0 in fp16, where the least loss scale speaks, "
     "else 100."},
    {"graph_harvesting", kBool, "false", "", kNoEffect, "no CUDA graphs are recorded here; results do not depend on it", "",
     "Record the gradient norm as a CUDA graph."},
    {"disable_allgather", kBool, "false", "", kNoEffect, "DeepSpeed has no use for it any more", "", "No effect since long ago."},
    {"allgather_size", kInteger, "500000000", ">= 0", kNoEffect, "it sizes an exchange that flat unit buffers do not need", "",
     "Elements per all-gather when zero_optimization is only true or false."},
    {"zero_allow_untested_optimizer", kBool, "false", "", kNoEffect, kNoClientOptimizer, "",
     "Permit optimizers of the caller that ZeRO does not know."},
    {"zero_force_ds_cpu_optimizer", kBool, "true", "", kNoEffect, kNoClientOptimizer, "",
     "Insist on DeepSpeed's CPU optimizers with optimizer offload."},
    {"use_data_before_expert_parallelism", kBool, "false", "", kNotBuilt, "expert parallelism", "", "Order of ranks in expert groups."},
    {"sequence_parallel_size", kInteger, "1", "> 0", kNotBuilt, "sequence parallelism", "",
     "Ranks that share one sequence; must divide the number of ranks."},
    {"data_parallel_size", kInteger, "", "> 0", kBuilt, "", "",
     "Ranks that share the batch; times sequence_parallel_size it must be the number of ranks."},
    {"seq_parallel_communication_data_type", kChoiceAnyCase, "\"fp32\"", "fp16 | bf16 | fp32", kDetail, "sequence parallelism", "",
     "Type of gradients while they are reduced over sequence-parallel ranks."},
    {"managed_gradient_accumulation", kBool, "true", "", kNotBuilt, "accumulation boundaries set by the caller", "0.19",
     "The engine finds the boundaries of accumulation itself."},
    {"gradient_allreduce_op", kChoice, "\"mean\"", "mean | sum", kNotBuilt, "summed gradients", "0.19",
     "Average gradients over ranks, or add up."},
    {"log_level", kChoice, "", "debug | info | warning | error | critical", kNotBuilt,
     "log level from the configuration (the environment variable DS_LOG_LEVEL sets it)", "0.19", "Least level of log lines."},
};

}  // namespace

std::span<const Key> schema_general() { return kRows; }

}  // namespace deepspeed::config
