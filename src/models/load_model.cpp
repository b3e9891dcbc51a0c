// Hugging Face directory -> model.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"
#include "data/tensor_file.h"
#include "models/builders.h"
#include "models/model_info.h"

namespace deepspeed {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kMostListed = 50;  // names in one message

std::string text_of(const std::string& path) {
  const formats::MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

std::vector<std::string> weight_files(const std::string& directory) {
  const std::string single = directory + "/model.safetensors", index = directory + "/model.safetensors.index.json";
  if (fs::exists(single)) return {single};
  if (!fs::exists(index)) {
    throw Error(
        ErrorCode::kFile, "models",
        base::str("weights in ", directory, ": got neither model.safetensors nor model.safetensors.index.json, allowed one of them",
                  fs::exists(directory + "/pytorch_model.bin") ? " (pytorch_model.bin is a pickle: convert it to safetensors)" : ""));
  }
  std::set<std::string> names;
  try {
    const json content = json::parse(text_of(index));
    for (const auto& [tensor, file] : content.at("weight_map").items()) {
      const auto name = file.get<std::string>();
      if (name.find('/') != std::string::npos) {
        throw Error(ErrorCode::kModelFormat, "models", base::str(index, ": file of ", tensor, ": got ", name, ", allowed a plain name"));
      }
      names.insert(directory + "/" + name);
    }
  } catch (const json::exception& error) {
    throw Error(ErrorCode::kModelFormat, "models", base::str(index, " is not an index of weights: ", error.what()));
  }
  return {names.begin(), names.end()};
}

// What older files hold beside the weights: constants of the architecture, and the head of a tied model.
bool ignorable(const std::string& name, const ModelInfo& info) {
  if (info.tied && name == "lm_head.weight") return true;
  if (info.type == "gpt2") return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  return name.ends_with(".rotary_emb.inv_freq");
}

struct Found {
  const formats::SafetensorsFile* file;
  const formats::TensorEntry* entry;
};

// Where each tensor of the files belongs. Files of a bare base model lack the prefix.
std::map<std::string, Found> tensors_by_name(const std::vector<std::unique_ptr<formats::SafetensorsFile>>& files, const ModelInfo& info) {
  const std::string prefix = info.type == "gpt2" ? "transformer." : "model.";
  std::map<std::string, Found> out;
  for (const auto& file : files) {
    for (const formats::TensorEntry& entry : file->entries()) {
      const bool bare = !entry.name.starts_with(prefix) && entry.name != "lm_head.weight";
      const auto [place, fresh] = out.emplace(bare ? prefix + entry.name : entry.name, Found{file.get(), &entry});
      if (!fresh) {
        throw Error(
            ErrorCode::kModelFormat, "models",
            base::str("tensor ", place->first, ": got one in ", place->second.file->path(), " and one in ", file->path(), ", allowed one"));
      }
    }
  }
  return out;
}

std::string listed(const char* title, const std::vector<std::string>& lines) {
  std::string out;
  for (size_t i = 0; i < std::min(lines.size(), kMostListed); ++i) out += base::str("\n  ", title, " ", lines[i]);
  if (lines.size() > kMostListed) out += base::str("\n  ", title, " ", lines.size() - kMostListed, " more");
  return out;
}

void fill(CausalLM& model, const std::string& directory) {
  std::vector<std::unique_ptr<formats::SafetensorsFile>> files;
  for (const std::string& path : weight_files(directory)) files.push_back(std::make_unique<formats::SafetensorsFile>(path));
  std::map<std::string, Found> found = tensors_by_name(files, model.info());

  std::vector<std::string> missing, unknown, misshapen;
  std::vector<std::pair<at::Tensor, Found>> copies;
  for (const auto& item : model.named_parameters()) {
    const auto place = found.find(item.key());
    if (place == found.end()) {
      missing.push_back(item.key());
      continue;
    }
    const formats::TensorEntry& entry = *place->second.entry;
    const at::ScalarType type = data::scalar_type_of(entry.dtype);
    const bool float_type = type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
    if (item.value().sizes() != at::IntArrayRef(entry.shape) || !float_type) {
      misshapen.push_back(base::str(item.key(), ": got ", formats::dtype_name(entry.dtype), " ", at::IntArrayRef(entry.shape),
                                    ", allowed F32, BF16 or F16 ", item.value().sizes()));
    } else {
      copies.emplace_back(item.value(), place->second);
    }
    found.erase(place);
  }
  for (const auto& [name, place] : found) {
    if (!ignorable(name, model.info())) unknown.push_back(place.entry->name);
  }
  if (!missing.empty() || !unknown.empty() || !misshapen.empty()) {
    throw Error(ErrorCode::kModelFormat, "models",
                base::str("weights in ", directory, " do not fit its config.json: ", missing.size(), " missing, ", unknown.size(),
                          " unknown, ", misshapen.size(), " of another shape or type", listed("missing", missing),
                          listed("unknown", unknown), listed("shape of", misshapen)));
  }
  for (const auto& [parameter, place] : copies) data::read_into(parameter, *place.file, *place.entry);
}

}  // namespace

std::shared_ptr<CausalLM> load_model(const std::string& directory) {
  ModelInfo info = parse_model_info(text_of(directory + "/config.json"));
  const std::string generation = directory + "/generation_config.json";
  if (fs::exists(generation)) {
    try {
      const std::vector<int64_t> ids = models::read_eos_ids(json::parse(text_of(generation)));
      if (!ids.empty()) info.eos_ids = ids;
    } catch (const json::exception& error) {
      throw Error(ErrorCode::kModelFormat, "models", base::str(generation, " is not JSON: ", error.what()));
    }
  }
  const std::shared_ptr<CausalLM> model = models::build(std::move(info));
  fill(*model, directory);
  return model;
}

}  // namespace deepspeed
