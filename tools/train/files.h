// Files that ds_train reads and writes beside the run itself.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "deepspeed/engine.h"
#include "deepspeed/models.h"

namespace deepspeed::train {

// Parameter groups of a JSON file: a list of {"match": regex, "lr", "weight_decay", "eps", "betas"}. Throws Error(kUsage).
std::vector<ParameterGroup> read_groups(const std::string& path);

// Makes the folder that `path` lies in, where possible; what is written there later names the reason if not.
void make_folder_of(const std::string& path);

void write_weights(const std::string& path, const std::map<std::string, at::Tensor>& weights);

// A Hugging Face directory, and in it check.safetensors: `input_ids` and the `logits` that the written model gives for them.
void write_export_directory(const std::string& directory, const std::string& source, const std::map<std::string, at::Tensor>& weights,
                            const ModelInfo& info);

}  // namespace deepspeed::train
