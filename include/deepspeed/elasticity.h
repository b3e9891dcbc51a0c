// A batch size that many numbers of devices can share, so that a run may grow and shrink without changing what it learns.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace deepspeed {

struct ElasticPlan {
  int64_t train_batch_size = 0;
  std::vector<int64_t> device_counts;  // that may share it (version 0.2 with model parallelism: data-parallel ranks), ascending
  std::optional<int64_t> micro_batch;  // for the given number of devices; empty: none was given, or none fits
};

// `section_json` is the `elasticity` section of a ds_config.json; `devices` is the present number, 0: not known (version 0.1 only).
// Throws Error(kConfigInvalid): a bad value, no possible batch, or a number of devices that cannot share it.
ElasticPlan plan_elastic_batch(const std::string& section_json, int64_t devices = 0);

}  // namespace deepspeed
