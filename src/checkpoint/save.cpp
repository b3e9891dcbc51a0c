#include "checkpoint/save.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/files.h"
#include "base/text.h"
#include "comm/agreement.h"
#include "deepspeed/error.h"
#include "formats/output_file.h"
#include "formats/safetensors.h"

namespace deepspeed::checkpoint {

using Json = nlohmann::ordered_json;

std::string rank_file(int rank, int world_size) {
  char name[64];
  std::snprintf(name, sizeof name, "rank_%05d_of_%05d.safetensors", rank, world_size);
  return name;
}

namespace {

formats::Dtype dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return formats::Dtype::kF32;
    case at::kBFloat16:
      return formats::Dtype::kBF16;
    case at::kHalf:
      return formats::Dtype::kF16;
    case at::kByte:
      return formats::Dtype::kU8;
    default:
      DS_CHECK(false, c10::toString(tensor.scalar_type()));
  }
  return formats::Dtype::kF32;
}

void write_rank_file(const std::string& path, const Image& image) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (size_t u = 0; u < image.units.size(); ++u) {
    const UnitImage& unit = image.units[u];
    tensors.emplace_back(base::str("unit.", u, ".parameter"), unit.parameter);
    for (size_t i = 0; i < unit.states.size(); ++i) {
      tensors.emplace_back(base::str("unit.", u, ".", image.state_names[i]), unit.states[i]);
    }
  }
  tensors.emplace_back("rng.cpu", at::globalContext().defaultGenerator(at::kCPU).get_state());
  std::vector<formats::TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, dtype_of(tensor), tensor.sizes().vec()});
  formats::SafetensorsWriter writer(path, std::move(specs), {{"format", kFormatName}});
  for (const auto& [name, tensor] : tensors) {
    const auto host = tensor.cpu().contiguous();
    writer.write(name, {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()});
  }
  writer.finish(/*durable=*/true);
}

std::string index_json(const Image& image, const std::string& tag, int world_size) {
  Json index;
  index["format"] = kFormatName;
  index["version"] = kFormatVersion;
  index["tag"] = tag;
  index["world_size"] = world_size;
  Json files = Json::array();
  for (int rank = 0; rank < world_size; ++rank) files.push_back(rank_file(rank, world_size));
  index["files"] = std::move(files);
  index["states"] = image.state_names;
  Json units = Json::array();
  for (const UnitImage& unit : image.units) {
    Json parameters = Json::array();
    for (const auto& slot : unit.layout->slots())
      parameters.push_back({{"name", slot.name}, {"shape", slot.shape}, {"offset", slot.offset}});
    units.push_back({{"trained", unit.trained}, {"shard_elements", unit.layout->shard_elements()}, {"parameters", std::move(parameters)}});
  }
  index["units"] = std::move(units);
  index["run"] = Json::parse(image.run_json);
  index["client_state"] = Json::parse(image.client_json);
  return index.dump(1);
}

void check_tag(const std::string& directory, const std::string& tag, const std::string& client_json) {
  if (directory.empty()) throw Error(ErrorCode::kUsage, "checkpoint", "save: got an empty directory name, allowed a path");
  if (tag.empty() || tag.find('/') != std::string::npos || tag[0] == '.' || tag == "latest") {
    throw Error(ErrorCode::kUsage, "checkpoint",
                base::str("save: got the tag \"", tag, "\", allowed a file name that neither starts with a dot nor is \"latest\""));
  }
  if (!Json::accept(client_json))
    throw Error(ErrorCode::kUsage, "checkpoint", "save: got a client_state that is no JSON, allowed JSON text");
}

// Runs `work`, then lets all ranks know how it went everywhere.
void together(Communicator& communicator, const std::string& what, const at::Tensor& probe, const std::function<void()>& work) {
  std::string error;
  try {
    work();
  } catch (const std::exception& failure) {
    error = failure.what();
    if (error.empty()) error = "unknown failure";
  }
  comm::agree_on_success(communicator, error, ErrorCode::kCheckpointWrite, "checkpoint", what, probe);
}

// Rank 0 only. Puts the finished temporary folder in its place.
void commit(const std::string& directory, const std::string& temporary, const std::string& tag, const std::string& index) {
  formats::OutputFile file(temporary + "/index.json");
  file.write(index);
  file.commit(/*durable=*/true);
  base::sync_directory(temporary);
  const std::string target = directory + "/" + tag;
  // A checkpoint of this name goes out and the new one comes in as one step, so that `latest` never names nothing. Where the file system cannot do
  // that, the old one is moved aside first.
  std::string replaced = temporary;
  if (!base::exists(target)) {
    base::rename_path(temporary, target);
  } else if (!base::exchange_paths(temporary, target)) {
    replaced = directory + "/.tmp.replaced." + tag;
    base::remove_tree(replaced);
    base::rename_path(target, replaced);
    base::rename_path(temporary, target);
  }
  base::sync_directory(directory);
  formats::OutputFile latest(directory + "/latest");
  latest.write(tag);
  latest.commit(/*durable=*/true);
  base::remove_tree(replaced);
}

}  // namespace

std::string save(Communicator& communicator, const std::string& directory, const std::string& tag, const Image& image,
                 const at::Tensor& device_probe) {
  const bool leads = communicator.rank() == 0;
  const std::string temporary = directory + "/.tmp." + tag;
  together(communicator, "save " + directory, device_probe, [&] {
    check_tag(directory, tag, image.client_json);
    if (!leads) return;
    base::make_directories(directory);
    // What an interrupted save left behind gives its space back here.
    for (const auto& item : std::filesystem::directory_iterator(directory)) {
      if (item.path().filename().string().rfind(".tmp.", 0) == 0) base::remove_tree(item.path().string());
    }
    base::make_directories(temporary);
  });
  try {
    together(communicator, "save " + temporary, device_probe,
             [&] { write_rank_file(temporary + "/" + rank_file(communicator.rank(), communicator.size()), image); });
    together(communicator, "save " + directory + "/" + tag, device_probe, [&] {
      if (leads) commit(directory, temporary, tag, index_json(image, tag, communicator.size()));
    });
  } catch (const Error& error) {
    if (leads && error.code() == ErrorCode::kCheckpointWrite) {
      std::error_code ignored;
      std::filesystem::remove_all(temporary, ignored);
    }
    throw;
  }
  return directory + "/" + tag;
}

}  // namespace deepspeed::checkpoint
