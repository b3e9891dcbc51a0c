#include "train/files.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "deepspeed/error.h"
#include "deepspeed/safetensors.h"
#include "parameter_groups.h"

namespace deepspeed::train {

std::vector<ParameterGroup> read_groups(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Error(ErrorCode::kUsage, "ds_train", "--parameter_groups " + path + ": cannot be read");
  const auto list = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (list.is_discarded()) throw Error(ErrorCode::kUsage, "ds_train", "--parameter_groups " + path + ": not JSON");
  try {
    return parse_groups(list);
  } catch (const Error& error) {
    throw Error(ErrorCode::kUsage, "ds_train", "--parameter_groups " + path + ": " + error.what());
  }
}

void make_folder_of(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
}

void write_weights(const std::string& path, const std::map<std::string, at::Tensor>& weights) {
  make_folder_of(path);
  save_safetensors(path, weights);
}

void write_export_directory(const std::string& directory, const std::string& source, const std::map<std::string, at::Tensor>& weights,
                            const ModelInfo& info) {
  ExportOptions options;
  options.source_directory = source;
  export_model(directory, weights, info, options);
  // Read back, so that what is checked is what was written.
  at::NoGradGuard no_grad;
  const auto model = load_model(directory);
  model->eval();
  const int64_t count = std::min<int64_t>(24, info.vocab_size);
  const auto ids = at::arange(count, at::TensorOptions().dtype(at::kLong)).mul(info.vocab_size / count).view({1, count});
  save_safetensors(directory + "/check.safetensors", {{"input_ids", ids}, {"logits", model->logits(ids)}});
}

}  // namespace deepspeed::train
