// One training run of the reference data: what to do, what came out, and how the two compare.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "conformance/json_file.h"

namespace deepspeed::conformance {

struct StepResult {
  std::vector<std::vector<double>> losses;  // [rank][micro batch]
  double mean_loss = 0;
  std::optional<double> grad_norm;
  std::vector<double> lr;
  std::vector<std::vector<double>> momentum;
  double loss_scale = 1;
  bool skipped = false;
};

struct TrainResult {
  std::vector<StepResult> steps;
  std::map<std::string, at::Tensor> weights;  // full, fp32
};

struct Tolerance {
  double loss_abs = 0, norm_rel = 0, weights_max_abs = 0, weights_rms = 0;
};

Tolerance tolerance_of(const Json& json);

// "" when all steps agree, else the first difference as "step 2 loss: got .., expected .., tolerance ..".
std::string compare_steps(const TrainResult& got, const Json& expected_steps, const Tolerance& tolerance);
std::string compare_weights(const TrainResult& got, const std::filesystem::path& file, const Tolerance& tolerance);

// Runs the case on ranks that are threads of this process.
TrainResult run_training(const std::filesystem::path& root, const std::filesystem::path& directory, const Json& settings);

}  // namespace deepspeed::conformance
