#include "config/schema.h"

#include <algorithm>

namespace deepspeed::config {

namespace {

// Parts of a dotted path, one at a time.
std::string_view take_part(std::string_view& path) {
  const size_t dot = path.find('.');
  const std::string_view part = path.substr(0, dot);
  path = dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
  return part;
}

// Whether `path` is an instance of `pattern`, in which "*" stands for any one part.
bool matches(std::string_view pattern, std::string_view path) {
  while (!pattern.empty() && !path.empty()) {
    const std::string_view want = take_part(pattern);
    const std::string_view have = take_part(path);
    if (want != "*" && want != have) return false;
  }
  return pattern.empty() && path.empty();
}

std::string_view section_of(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

std::string_view name_of(std::string_view path) { return path.substr(path.rfind('.') + 1); }

}  // namespace

const std::vector<Key>& schema() {
  static const std::vector<Key> rows = [] {
    std::vector<Key> all;
    for (const auto part : {schema_general(), schema_optimizer(), schema_precision(), schema_zero(), schema_observability(),
                            schema_parallel(), schema_data(), schema_compression()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return rows;
}

const std::vector<Alias>& aliases() {
  static const std::vector<Alias> rows = {
      {"bfloat16", "bf16", false},
      {"ds_sequence_parallel_size", "sequence_parallel_size", false},
      {"zero_optimization.prefetch_bucket_size", "zero_optimization.stage3_prefetch_bucket_size", false},
      {"zero_optimization.param_persistence_threshold", "zero_optimization.stage3_param_persistence_threshold", false},
      {"zero_optimization.model_persistence_threshold", "zero_optimization.stage3_model_persistence_threshold", false},
      {"zero_optimization.max_live_parameters", "zero_optimization.stage3_max_live_parameters", false},
      {"zero_optimization.max_reuse_distance", "zero_optimization.stage3_max_reuse_distance", false},
      {"zero_optimization.gather_16bit_weights_on_model_save", "zero_optimization.stage3_gather_16bit_weights_on_model_save", false},
      {"zero_optimization.stage3_gather_fp16_weights_on_model_save", "zero_optimization.stage3_gather_16bit_weights_on_model_save", true},
      {"zero_optimization.module_granularity_threshold", "zero_optimization.stage3_module_granularity_threshold", false},
      {"zero_optimization.use_all_reduce_for_fetch_params", "zero_optimization.stage3_use_all_reduce_for_fetch_params", false},
      {"zero_optimization.allgather_sequential", "zero_optimization.stage3_allgather_sequential", false},
      {"tensor_parallel.tensor_parallel", "tensor_parallel.tp", false},
      {"tensor_parallel.kernel_inject", "tensor_parallel.replace_with_kernel_inject", false},
  };
  return rows;
}

const Key* find_key(std::string_view path) {
  const Key* best = nullptr;  // a row without "*" wins over one with
  for (const auto& key : schema()) {
    if (key.path == path) return &key;
    if (best == nullptr && matches(key.path, path)) best = &key;
  }
  return best;
}

std::vector<std::string> names_inside(std::string_view section) {
  std::vector<std::string> names;
  const auto add = [&](std::string_view path) {
    const std::string name(name_of(path));
    if (name == "*" || std::find(names.begin(), names.end(), name) != names.end()) return;
    const std::string_view owner = section_of(path);
    if (owner == section || (!owner.empty() && matches(owner, section))) names.push_back(name);
  };
  for (const auto& key : schema()) add(key.path);
  for (const auto& alias : aliases()) add(alias.path);
  return names;
}

std::vector<std::string> paths_ending_in(std::string_view name) {
  std::vector<std::string> paths;
  for (const auto& key : schema()) {
    if (name_of(key.path) == name) paths.emplace_back(key.path);
  }
  return paths;
}

}  // namespace deepspeed::config
