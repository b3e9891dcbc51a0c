// A training state as the checkpoint sees it: this rank's shard of every unit, whatever the ZeRO stage, and the run's own values as JSON.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tensor/unit_layout.h"

namespace deepspeed::checkpoint {

struct UnitImage {
  const tensor::UnitLayout* layout = nullptr;
  at::Tensor parameter;  // [shard]; fp32 master when trained, else the working type
  bool trained = false;
  std::vector<at::Tensor> states;  // of the optimizer, in the order of Image::state_names; [shard] fp32; none when frozen
};

struct Image {
  std::vector<UnitImage> units;
  std::vector<std::string> state_names;
  // By state: every name that a checkpoint may have for it, the one above first.
  std::vector<std::vector<std::string>> state_aliases;
  std::string run_json = "{}";     // counters, schedule, configuration
  std::string client_json = "{}";  // the caller's
};

// Name of a rank's file inside a checkpoint.
std::string rank_file(int rank, int world_size);

inline constexpr const char* kFormatName = "deepspeed-native-checkpoint";
inline constexpr int kFormatVersion = 1;

}  // namespace deepspeed::checkpoint
