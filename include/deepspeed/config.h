// The resolved ds_config.json: what a run does, as plain values.
//
// Made by load_config(), which checks a file against the schema (src/config/schema.cpp), reports every error at once and resolves the
// batch triple for a world size. Owns all its data; safe to copy and to read from any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace deepspeed {

enum class DataType { kFloat32, kFloat16, kBFloat16 };

// "auto" and absent keys leave std::optional fields empty; every other field holds the default of API level 0.18.4.
struct Config {
  // Batch triple, resolved: train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * data-parallel world.
  int64_t train_batch_size = 0;                // samples per optimizer step over all ranks
  int64_t train_micro_batch_size_per_gpu = 0;  // samples per rank and forward
  int64_t gradient_accumulation_steps = 0;     // forwards per optimizer step
  int64_t data_parallel_size = 1;              // ranks that share the batch

  std::optional<int64_t> steps_per_print;  // optimizer steps between progress lines; empty: none
  double gradient_clipping = 0.0;          // global L2 norm; 0: off
  bool prescale_gradients = false;
  double gradient_predivide_factor = 1.0;
  std::optional<DataType> communication_data_type;  // of gradients on the wire; empty: by precision
  std::optional<DataType> grad_accum_dtype;         // data_types.grad_accum_dtype
  bool dataloader_drop_last = false;
  bool wall_clock_breakdown = false;
  bool dump_state = false;
  // Extension. So many skipped steps in a row end the run with Error(kNumerics); 0: never. Unset: 0 in fp16, where the least loss scale speaks,
  // else 100.
  std::optional<int64_t> max_consecutive_skipped_steps;

  struct Optimizer {
    std::string type;  // "SGD", else lower case: adam, adamw, lamb, lion, adagrad, muon; empty: the config names none
    // Defaults that depend on the type are resolved.
    double lr = 1e-3;
    double beta1 = 0.9, beta2 = 0.999;  // Adam, AdamW, Lamb, Lion, Adam part of Muon
    double eps = 1e-8;                  // all but Lion and SGD
    double weight_decay = 0.0;
    bool bias_correction = true;  // Adam, AdamW, Lamb
    bool adam_w_mode = true;      // decoupled decay. See docs/differences.md for what "Adam" with torch_adam means
    bool torch_adam = false;
    bool amsgrad = false;                    // Adam, AdamW
    bool maximize = false;                   // climb instead of descend
    double momentum = 0.0, dampening = 0.0;  // SGD; momentum of Muon
    bool nesterov = false;
    double lr_decay = 0.0, initial_accumulator_value = 0.0;  // Adagrad
    double min_coeff = 0.01, max_coeff = 10.0;               // Lamb: limits of the trust ratio
    bool eps_inside_sqrt = false;
    double adam_lr = 3e-4;  // Muon: rate of what is no matrix; lr is that of matrices

    // Adam-like: its parameter groups have betas. Muon's have them where Adam is at work.
    bool has_betas() const { return type != "SGD" && type != "adagrad" && type != "muon"; }
  } optimizer;

  struct Scheduler {
    std::string type;         // empty: the config names none
    std::string params_json;  // scheduler.params as JSON text, checked by make_schedule (src/schedule)
  } scheduler;

  struct Float16 {
    bool enabled = false;
    double loss_scale = 0.0;  // static; 0: dynamic
    int initial_scale_power = 16;
    int64_t loss_scale_window = 1000;
    int64_t hysteresis = 2;
    bool consecutive_hysteresis = false;
    double min_loss_scale = 1.0;
  } fp16;

  struct BFloat16 {
    bool enabled = false;
    bool check_grad_overflow = false;
  } bf16;

  struct TorchAutocast {
    bool enabled = false;
    DataType dtype = DataType::kBFloat16;  // of operators that are safe in 16 bit
  } torch_autocast;

  struct Zero {
    int stage = 0;
    bool contiguous_gradients = true;
    bool reduce_scatter = true;
    int64_t reduce_bucket_size = 500'000'000;  // elements
    bool allgather_partitions = true;
    int64_t allgather_bucket_size = 500'000'000;  // elements
    std::optional<bool> overlap_comm;
    bool round_robin_gradients = false;
    bool ignore_unused_parameters = true;
    int64_t sub_group_size = 1'000'000'000;                                     // elements
    int64_t prefetch_bucket_size = 50'000'000;                                  // elements
    int64_t param_persistence_threshold = 100'000;                              // elements
    int64_t model_persistence_threshold = std::numeric_limits<int64_t>::max();  // elements
    int64_t max_live_parameters = 1'000'000'000;                                // elements
    int64_t max_reuse_distance = 1'000'000'000;                                 // elements
    bool gather_16bit_weights_on_model_save = false;
  } zero;

  struct Checkpoint {
    enum class TagValidation { kIgnore, kWarn, kFail } tag_validation = TagValidation::kWarn;
    bool load_universal = false;  // the real DeepSpeed's latest_universal comes before latest
  } checkpoint;

  // Lines a user should see at start: deprecated spellings, settings that change nothing here and why.
  std::vector<std::string> notes;

  std::string source_json;  // the configuration as given, canonical JSON; goes into checkpoints
};

struct ConfigIssue {
  enum class Kind {
    kSyntax,
    kDuplicateKey,
    kMissing,
    kUnknownKey,
    kWrongType,
    kBadValue,
    kOutOfRange,
    kConflict,
    kInconsistent,
    kNotBuilt
  };
  Kind kind;
  std::string path;     // dotted key path; "" for the whole text
  std::string message;  // what was given, what is allowed, nearest key
  std::string feature;  // kNotBuilt only: the name of the feature
};

// Name of a kind as the reference data spells it ("unknown_key").
const char* to_string(ConfigIssue::Kind kind);

struct ConfigResult {
  Config config;                    // valid only when issues is empty
  std::vector<ConfigIssue> issues;  // every error found
};

// Parses and checks without throwing. `text` is the content of a ds_config.json (comments allowed), `world_size` the number of ranks.
ConfigResult check_config(const std::string& text, int64_t world_size);

// As check_config, but throws Error: kNotBuilt when the only issues are features that are not built, else kConfigInvalid; one report with
// every issue.
Config parse_config(const std::string& text, int64_t world_size);

struct ScheduleCheck {
  std::string values_json;          // every parameter: as given, else its default, null where unset; valid only when issues is empty
  std::vector<ConfigIssue> issues;  // path is the bare parameter name, "type", or "" for the parameters as a whole
  std::vector<std::string> notes;
};

// Checks scheduler.type and scheduler.params (as JSON text, "" for none). With `groups`, the number of parameter groups, the length of
// per-group lists is checked too. Does not throw.
ScheduleCheck check_schedule(const std::string& type, const std::string& params_json, std::optional<int64_t> groups = std::nullopt);

// Reads a file and parses it. Throws Error(kFile) when it cannot be read.
Config load_config(const std::string& path, int64_t world_size);

}  // namespace deepspeed
