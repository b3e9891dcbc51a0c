// Model -> Hugging Face directory.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "data/tensor_file.h"
#include "deepspeed/models.h"

namespace deepspeed {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kCopied[] = {"generation_config.json",
                                   "tokenizer.json",
                                   "tokenizer_config.json",
                                   "special_tokens_map.json",
                                   "added_tokens.json",
                                   "vocab.json",
                                   "merges.txt",
                                   "tokenizer.model",
                                   "chat_template.jinja",
                                   "chat_template.json"};

using Shard = std::vector<std::string>;  // names

std::vector<Shard> cut(const std::map<std::string, at::Tensor>& weights, int64_t max_bytes) {
  std::vector<Shard> shards(1);
  int64_t size = 0;
  for (const auto& [name, tensor] : weights) {
    const int64_t bytes = tensor.numel() * 4;
    if (size > 0 && size + bytes > max_bytes) {
      shards.emplace_back();
      size = 0;
    }
    shards.back().push_back(name);
    size += bytes;
  }
  return shards;
}

std::string shard_name(size_t number, size_t count) {
  if (count == 1) return "model.safetensors";
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", number + 1, count);
  return name;
}

void write_shard(const std::string& path, const Shard& names, const std::map<std::string, at::Tensor>& weights) {
  std::vector<formats::TensorSpec> specs;
  for (const std::string& name : names) specs.push_back({name, formats::Dtype::kF32, weights.at(name).sizes().vec()});
  formats::SafetensorsWriter writer(path, std::move(specs));
  for (const std::string& name : names) {
    const at::Tensor plain = weights.at(name).detach().to(at::kCPU, at::kFloat).contiguous();
    writer.write(name, data::tensor_bytes(plain));
  }
  writer.finish(true);
}

void write_text(const std::string& path, const std::string& text) {
  formats::OutputFile file(path);
  file.write(text);
  file.commit(true);
}

// Readers take model.safetensors before an index, so files of an earlier export must not stay.
void remove_old_weights(const fs::path& directory, const std::vector<std::string>& keep) {
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    const bool weights = name.starts_with("model") && (name.ends_with(".safetensors") || name == "model.safetensors.index.json");
    if (weights && std::find(keep.begin(), keep.end(), name) == keep.end()) fs::remove(entry.path());
  }
}

std::string config_text(const ModelInfo& info) {
  Json config = Json::parse(info.config_json);
  // Newer files call it "dtype", older ones "torch_dtype".
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = "float32";
  if (config.contains("dtype")) config.erase("torch_dtype");
  return config.dump(2) + "\n";
}

}  // namespace

void export_model(const std::string& directory, const std::map<std::string, at::Tensor>& weights, const ModelInfo& info,
                  const ExportOptions& options) {
  if (weights.empty())
    throw Error(ErrorCode::kUsage, "models", base::str("exporting to ", directory, ": got no weights, allowed those of a model"));
  if (info.tied && weights.count("lm_head.weight") > 0) {
    throw Error(ErrorCode::kUsage, "models", "exporting: got lm_head.weight of a tied model, allowed its embedding alone");
  }
  if (options.max_shard_bytes < 1) {
    throw Error(ErrorCode::kUsage, "models", base::str("exporting: max_shard_bytes: got ", options.max_shard_bytes, ", allowed 1 or more"));
  }
  try {
    fs::create_directories(directory);
    std::vector<std::string> written;
    const std::vector<Shard> shards = cut(weights, options.max_shard_bytes);
    Json map = Json::object();
    int64_t total = 0;
    for (size_t i = 0; i < shards.size(); ++i) {
      written.push_back(shard_name(i, shards.size()));
      write_shard(directory + "/" + written.back(), shards[i], weights);
      for (const std::string& name : shards[i]) {
        map[name] = written.back();
        total += weights.at(name).numel() * 4;
      }
    }
    if (shards.size() > 1) {
      written.push_back("model.safetensors.index.json");
      write_text(directory + "/" + written.back(), Json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(2) + "\n");
    }
    remove_old_weights(directory, written);
    write_text(directory + "/config.json", config_text(info));
    for (const char* name : kCopied) {
      if (options.source_directory.empty() || !fs::exists(options.source_directory + "/" + name)) continue;
      if (fs::exists(directory + "/" + name) && fs::equivalent(options.source_directory, directory)) continue;
      fs::copy_file(options.source_directory + "/" + name, directory + "/" + name, fs::copy_options::overwrite_existing);
    }
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorCode::kFile, "models", base::str("exporting to ", directory, ": ", error.what()));
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kModelFormat, "models", base::str("exporting to ", directory, ": config.json of the model: ", error.what()));
  }
}

}  // namespace deepspeed
