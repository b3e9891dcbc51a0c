// Learning-rate schedules as pure functions of the iteration.
//
// The iteration t counts calls of step(): -1 before the first, 0 after it.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace deepspeed::schedule {

struct GroupRates {
  double lr = 0.0;
  std::optional<std::pair<double, double>> betas;  // empty for optimizers without betas
};

class Curve {
 public:
  virtual ~Curve() = default;
  // Rate of a group, 0 <= group < number of groups, at iteration t. Any t, also below -1 and far past the end.
  virtual double lr(size_t group, int64_t t) const = 0;
  // Betas of a group that has betas; empty: the schedule leaves them alone. `fresh`: before the first step.
  virtual std::optional<std::pair<double, double>> betas(size_t, int64_t, bool) const { return std::nullopt; }
};

// `values` are the checked parameters (check_schedule in deepspeed/config.h); `groups` as they stand before the schedule.
std::unique_ptr<Curve> make_range_test(const nlohmann::json& values, const std::vector<GroupRates>& groups);
std::unique_ptr<Curve> make_one_cycle(const nlohmann::json& values, const std::vector<GroupRates>& groups);
std::unique_ptr<Curve> make_warmup(const nlohmann::json& values, const std::vector<GroupRates>& groups);
std::unique_ptr<Curve> make_warmup_decay(const nlohmann::json& values, const std::vector<GroupRates>& groups);
std::unique_ptr<Curve> make_warmup_cosine(const nlohmann::json& values, const std::vector<GroupRates>& groups);

// A parameter that is one number for all groups or a list of one per group.
std::vector<double> per_group(const nlohmann::json& value, size_t groups);

}  // namespace deepspeed::schedule
