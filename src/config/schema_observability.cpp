// Rows: profilers, monitors, timers and checkpoints.
#include "config/schema.h"

namespace deepspeed::config {

namespace {

using enum Type;
using enum Status;

constexpr std::string_view kFlops = "flops profiler";
constexpr std::string_view kComms = "comms logger";
constexpr std::string_view kBoard = "TensorBoard monitor";
constexpr std::string_view kWandb = "WandB monitor";
constexpr std::string_view kCsv = "CSV monitor";
constexpr std::string_view kComet = "Comet monitor";
constexpr std::string_view kNebula = "Nebula checkpoints";
constexpr std::string_view kWriter = "checkpoints are safetensors files, written and committed in one way";

constexpr Key kRows[] = {
    {"flops_profiler", kSection, "", "", kBuilt, "", "", "Counts floating-point operations of a step."},
    {"flops_profiler.enabled", kBool, "false", "", kNotBuilt, kFlops, "", "Switch."},
    {"flops_profiler.recompute_fwd_factor", kNumber, "0.0", ">= 0", kDetail, kFlops, "", "Forward passes repeated in backward."},
    {"flops_profiler.profile_step", kInteger, "1", "> 0", kDetail, kFlops, "", "Step to profile."},
    {"flops_profiler.module_depth", kInteger, "-1", ">= -1", kDetail, kFlops, "", "Depth of the table; -1: all."},
    {"flops_profiler.top_modules", kInteger, "1", "> 0", kDetail, kFlops, "", "Modules per line of the table."},
    {"flops_profiler.detailed", kBool, "true", "", kDetail, kFlops, "", "Print the tree of modules."},
    {"flops_profiler.output_file", kText, "null", "", kDetail, kFlops, "", "File instead of the screen."},
    {"flops_profiler.profile_amd", kBool, "false", "", kNoEffect, "an extension of other builds", "", "Extension; accepted."},

    {"comms_logger", kSection, "", "", kBuilt, "", "", "Statistics of collectives.", kTyped},
    {"comms_logger.enabled", kBool, "false", "", kNotBuilt, kComms, "", "Switch."},
    {"comms_logger.verbose", kBool, "false", "", kDetail, kComms, "", "A line per operation."},
    {"comms_logger.prof_all", kBool, "true", "", kDetail, kComms, "", "All operations."},
    {"comms_logger.prof_ops", kTextList, "[]", "", kDetail, kComms, "", "Operations, when not all."},
    {"comms_logger.debug", kBool, "false", "", kDetail, kComms, "", "Add the caller's name."},

    {"tensorboard", kSection, "", "", kBuilt, "", "", "Event files for TensorBoard.", kTyped},
    {"tensorboard.enabled", kBool, "false", "", kNotBuilt, kBoard, "", "Switch."},
    {"tensorboard.output_path", kText, "\"\"", "", kDetail, kBoard, "", "Folder."},
    {"tensorboard.job_name", kText, "\"DeepSpeedJobName\"", "", kDetail, kBoard, "", "Folder inside it."},
    {"wandb", kSection, "", "", kBuilt, "", "", "Weights and Biases.", kTyped},
    {"wandb.enabled", kBool, "false", "", kNotBuilt, kWandb, "", "Switch."},
    {"wandb.group", kText, "null", "", kDetail, kWandb, "", "Group of runs."},
    {"wandb.team", kText, "null", "", kDetail, kWandb, "", "Team."},
    {"wandb.project", kText, "\"deepspeed\"", "", kDetail, kWandb, "", "Project."},
    {"csv_monitor", kSection, "", "", kBuilt, "", "", "One CSV file per series.", kTyped},
    {"csv_monitor.enabled", kBool, "false", "", kNotBuilt, kCsv, "", "Switch."},
    {"csv_monitor.output_path", kText, "\"\"", "", kDetail, kCsv, "", "Folder."},
    {"csv_monitor.job_name", kText, "\"DeepSpeedJobName\"", "", kDetail, kCsv, "", "Folder inside it."},
    {"comet", kSection, "", "", kBuilt, "", "", "Comet.", kTyped},
    {"comet.enabled", kBool, "false", "", kNotBuilt, kComet, "", "Switch."},
    {"comet.samples_log_interval", kInteger, "100", "> 0", kDetail, kComet, "", "Samples between events."},
    {"comet.project", kText, "null", "", kDetail, kComet, "", "Project."},
    {"comet.workspace", kText, "null", "", kDetail, kComet, "", "Workspace."},
    {"comet.api_key", kText, "null", "", kDetail, kComet, "", "Key of the service."},
    {"comet.experiment_name", kText, "null", "", kDetail, kComet, "", "Name of the run."},
    {"comet.experiment_key", kText, "null", "", kDetail, kComet, "", "Key of the run."},
    {"comet.online", kBool, "null", "", kDetail, kComet, "", "Send at once."},
    {"comet.mode", kChoice, "null", "get | create | get_or_create", kDetail, kComet, "", "Old or new run."},

    {"timers", kSection, "", "", kBuilt, "", "", "Timers."},
    {"timers.throughput", kSection, "", "", kBuilt, "", "", "The line of samples per second.", kTyped},
    {"timers.throughput.enabled", kBool, "true", "", kNoEffect, "the line of samples per second is not printed anyway", "", "Print it."},
    {"timers.throughput.synchronized", kBool, "true", "", kNoEffect, "the line of samples per second is not printed", "",
     "Wait for the device first."},

    {"checkpoint", kSection, "", "", kBuilt, "", "", "Checkpoints."},
    {"checkpoint.tag_validation", kChoiceAnyCase, "\"WARN\"", "IGNORE | WARN | FAIL", kBuilt, "", "",
     "When ranks save under different tags."},
    {"checkpoint.load_universal", kBool, "false", "", kBuilt, "", "",
     "Prefer DeepSpeed's universal checkpoint (latest_universal) over its plain one. This project's own load at any number of ranks."},
    {"checkpoint.use_node_local_storage", kBool, "false", "", kNotBuilt, "node-local checkpoints", "", "Each node writes its own copy."},
    {"checkpoint.parallel_write", kSection, "", "", kBuilt, "", "", "Who writes."},
    {"checkpoint.parallel_write.pipeline_stage", kBool, "false", "", kNoEffect, "every rank always writes its own shard", "",
     "Spread layers over data-parallel ranks."},
    {"checkpoint.checkpoint_serialization", kBool, "true", "", kNoEffect, kWriter, "", "torch's zip container."},
    {"checkpoint.writer", kSection, "null", "", kBuilt, "", "", "How files are written."},
    {"checkpoint.writer.type", kChoiceAnyCase, "\"FAST\"", "MOCK | PYTHON | FAST", kNoEffect, kWriter, "", "Kind of writer."},
    {"checkpoint.writer.decoupled", kBool, "false", "", kNotBuilt, "asynchronous checkpoints", "", "A helper process writes."},
    {"checkpoint.writer.io_buffer_size", kInteger, "67108864", "> 0", kNoEffect, kWriter, "", "Bytes per buffer."},
    {"checkpoint.writer.io_buffer_double", kBool, "true", "", kNoEffect, kWriter, "", "Two buffers."},
    {"checkpoint.writer.show_statistics", kBool, "false", "", kNoEffect, kWriter, "", "Print times."},
    {"checkpoint.writer.data_parallel", kChoiceAnyCase, "null", "REPLICA | SOCKET | MACHINE", kNoEffect, kWriter, "",
     "Ranks that share a write."},
    {"checkpoint.writer.io_multiplier", kInteger, "1", "> 0", kNoEffect, kWriter, "", "Writers per resource."},
    {"nebula", kSection, "", "", kBuilt, "", "", "Azure's checkpoint service."},
    {"nebula.enabled", kBool, "false", "", kNotBuilt, kNebula, "", "Switch."},
    {"nebula.enable_nebula_load", kBool, "true", "", kDetail, kNebula, "", "Load through it."},
    {"nebula.persistent_storage_path", kText, "null", "", kDetail, kNebula, "", "Where to keep."},
    {"nebula.persistent_time_interval", kInteger, "100", "> 0", kDetail, kNebula, "", "Seconds between copies."},
    {"nebula.num_of_version_in_retention", kInteger, "2", "> 0", kDetail, kNebula, "", "Copies to keep."},
    {"datastates_ckpt", kAny, "false", "", kNotBuilt, "asynchronous checkpoints", "", "DataStates engine; on when given."},
};

}  // namespace

std::span<const Key> schema_observability() { return kRows; }

}  // namespace deepspeed::config
