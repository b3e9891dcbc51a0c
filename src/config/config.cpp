#include "deepspeed/config.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/text.h"
#include "config/batch.h"
#include "config/optimizer.h"
#include "config/relaxed_json.h"
#include "config/rules.h"
#include "config/schedules.h"
#include "config/value.h"
#include "config/walk.h"
#include "deepspeed/error.h"

namespace deepspeed {

namespace {

using base::str;
using config::Settings;
using Kind = ConfigIssue::Kind;
using nlohmann::json;

std::optional<DataType> data_type(const json& word) {
  if (word.is_null()) return std::nullopt;
  if (word == "fp32" || word == "float32") return DataType::kFloat32;
  return word == "fp16" || word == "float16" ? DataType::kFloat16 : DataType::kBFloat16;
}

Config::Zero make_zero(const Settings& settings) {
  const auto flag = [&](const char* name) { return settings.flag(str("zero_optimization.", name)); };
  const auto integer = [&](const char* name) { return settings.integer(str("zero_optimization.", name)); };
  Config::Zero zero;
  zero.stage = static_cast<int>(integer("stage"));
  zero.contiguous_gradients = flag("contiguous_gradients");
  zero.reduce_scatter = flag("reduce_scatter");
  zero.reduce_bucket_size = integer("reduce_bucket_size");
  zero.allgather_partitions = flag("allgather_partitions");
  zero.allgather_bucket_size = integer("allgather_bucket_size");
  if (settings.has("zero_optimization.overlap_comm")) zero.overlap_comm = flag("overlap_comm");
  zero.round_robin_gradients = flag("round_robin_gradients");
  zero.ignore_unused_parameters = flag("ignore_unused_parameters");
  zero.sub_group_size = integer("sub_group_size");
  zero.prefetch_bucket_size = integer("stage3_prefetch_bucket_size");
  zero.param_persistence_threshold = integer("stage3_param_persistence_threshold");
  zero.model_persistence_threshold = integer("stage3_model_persistence_threshold");
  zero.max_live_parameters = integer("stage3_max_live_parameters");
  zero.max_reuse_distance = integer("stage3_max_reuse_distance");
  zero.gather_16bit_weights_on_model_save = flag("stage3_gather_16bit_weights_on_model_save");
  return zero;
}

// scheduler.params without "auto", which stands for the default.
json schedule_params(const Settings& settings) {
  json params = json::object();
  if (!settings.has("scheduler.params")) return params;
  const json given = settings.get("scheduler.params");
  for (const auto& [name, value] : given.items()) {
    if (value != "auto") params[name] = value;
  }
  return params;
}

// All keys have passed their checks.
void fill(const Settings& settings, Config& config) {
  if (settings.has("steps_per_print")) config.steps_per_print = settings.integer("steps_per_print");
  config.gradient_clipping = settings.number("gradient_clipping");
  config.prescale_gradients = settings.flag("prescale_gradients");
  config.gradient_predivide_factor = settings.number("gradient_predivide_factor");
  config.communication_data_type = data_type(settings.get("communication_data_type"));
  config.grad_accum_dtype = data_type(settings.get("data_types.grad_accum_dtype"));
  config.dataloader_drop_last = settings.flag("dataloader_drop_last");
  config.wall_clock_breakdown = settings.flag("wall_clock_breakdown");
  config.dump_state = settings.flag("dump_state");
  config.optimizer = config::make_optimizer(settings);
  if (settings.has("scheduler.type")) {
    config.scheduler.type = settings.get("scheduler.type").get<std::string>();
    config.scheduler.params_json = schedule_params(settings).dump();
  }
  config.fp16.enabled = settings.flag("fp16.enabled");
  config.fp16.loss_scale = settings.number("fp16.loss_scale");
  config.fp16.initial_scale_power = static_cast<int>(settings.integer("fp16.initial_scale_power"));
  config.fp16.loss_scale_window = settings.integer("fp16.loss_scale_window");
  config.fp16.hysteresis = settings.integer("fp16.hysteresis");
  config.fp16.consecutive_hysteresis = settings.flag("fp16.consecutive_hysteresis");
  config.fp16.min_loss_scale = settings.number("fp16.min_loss_scale");
  config.bf16.enabled = settings.flag("bf16.enabled");
  config.bf16.check_grad_overflow = settings.flag("bf16.check_grad_overflow");
  config.torch_autocast.enabled = settings.flag("torch_autocast.enabled");
  config.torch_autocast.dtype = data_type(settings.get("torch_autocast.dtype")).value_or(DataType::kBFloat16);
  if (settings.has("max_consecutive_skipped_steps"))
    config.max_consecutive_skipped_steps = settings.integer("max_consecutive_skipped_steps");
  config.zero = make_zero(settings);
  using Validation = Config::Checkpoint::TagValidation;
  config.checkpoint.load_universal = settings.flag("checkpoint.load_universal");
  const json validation = settings.get("checkpoint.tag_validation");
  config.checkpoint.tag_validation = validation == "IGNORE" ? Validation::kIgnore
                                     : validation == "FAIL" ? Validation::kFail
                                                            : Validation::kWarn;
}

bool only_not_built(const std::vector<ConfigIssue>& issues) {
  return std::all_of(issues.begin(), issues.end(), [](const ConfigIssue& issue) { return issue.kind == Kind::kNotBuilt; });
}

Config config_or_throw(const std::string& text, int64_t world_size, const std::string& what) {
  ConfigResult result = check_config(text, world_size);
  if (result.issues.empty()) return std::move(result.config);
  std::vector<std::string> lines = {str(what, " has ", result.issues.size(), result.issues.size() == 1 ? " error:" : " errors:")};
  for (const auto& issue : result.issues) lines.push_back(str("  ", issue.path.empty() ? "" : issue.path + ": ", issue.message));
  throw Error(only_not_built(result.issues) ? ErrorCode::kNotBuilt : ErrorCode::kConfigInvalid, "config", base::join(lines, "\n"));
}

}  // namespace

const char* to_string(ConfigIssue::Kind kind) {
  switch (kind) {
    case Kind::kSyntax:
      return "syntax";
    case Kind::kDuplicateKey:
      return "duplicate_key";
    case Kind::kMissing:
      return "missing";
    case Kind::kUnknownKey:
      return "unknown_key";
    case Kind::kWrongType:
      return "wrong_type";
    case Kind::kBadValue:
      return "bad_value";
    case Kind::kOutOfRange:
      return "out_of_range";
    case Kind::kConflict:
      return "conflict";
    case Kind::kInconsistent:
      return "inconsistent";
    case Kind::kNotBuilt:
      return "unsupported";
  }
  return "unknown";
}

ConfigResult check_config(const std::string& text, int64_t world_size) {
  ConfigResult result;
  if (world_size < 1) {
    result.issues.push_back({Kind::kOutOfRange, "", str("got ", world_size, " ranks, allowed at least 1"), ""});
    return result;
  }
  auto parsed = config::parse_relaxed_json(text);
  result.issues = std::move(parsed.issues);
  if (std::any_of(result.issues.begin(), result.issues.end(), [](const ConfigIssue& issue) { return issue.kind == Kind::kSyntax; }))
    return result;
  if (!parsed.value.is_object()) {
    result.issues.push_back({Kind::kWrongType, "", str("got ", config::shown(parsed.value), ", allowed an object { } at top level"), ""});
    return result;
  }
  Settings settings = config::walk_configuration(parsed.value);
  config::check_optimizer(settings);
  config::check_scheduler(settings);
  config::check_rules(settings);
  config::resolve_batch(settings, world_size, result.config);
  result.issues.insert(result.issues.end(), settings.issues.begin(), settings.issues.end());
  if (only_not_built(result.issues)) fill(settings, result.config);
  result.config.notes = settings.notes;
  result.config.source_json = parsed.value.dump();
  return result;
}

Config parse_config(const std::string& text, int64_t world_size) { return config_or_throw(text, world_size, "the configuration"); }

Config load_config(const std::string& path, int64_t world_size) {
  const auto unreadable = [&](const std::string& why) {
    return Error(ErrorCode::kFile, "config", str("reading a configuration: got \"", path, "\" (", why, "), allowed a readable file"));
  };
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) throw unreadable("it is a directory");
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw unreadable(std::strerror(errno));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) throw unreadable(std::strerror(errno));
  return config_or_throw(text, world_size, str("\"", path, "\""));
}

}  // namespace deepspeed
