// WarmupLR, WarmupDecayLR, WarmupCosineLR: a climb, then a constant, a line down to the start, or half a cosine.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "schedule/curve.h"

namespace deepspeed::schedule {

namespace {

// The climb from 0 to 1.
class Climb {
 public:
  explicit Climb(const nlohmann::json& values)
      // One step would make the logarithm of the count zero.
      : steps_(std::max(2.0, values.at("warmup_num_steps").get<double>())), linear_(values.at("warmup_type") == "linear") {}

  double steps() const { return steps_; }
  bool over(int64_t t) const { return static_cast<double>(t) >= steps_; }
  double height(int64_t t) const {
    return linear_ ? static_cast<double>(t) / steps_ : std::log(static_cast<double>(t + 1)) / std::log(steps_);
  }

 private:
  double steps_;
  bool linear_;
};

std::vector<double> own_rates(const std::vector<GroupRates>& groups) {
  std::vector<double> rates;
  for (const auto& group : groups) rates.push_back(group.lr);
  return rates;
}

// With a total, the rate falls back to the start along a line; without, it stays.
class Warmup final : public Curve {
 public:
  Warmup(const nlohmann::json& values, const std::vector<GroupRates>& groups)
      : climb_(values),
        min_(per_group(values.at("warmup_min_lr"), groups.size())),
        max_(values.at("warmup_max_lr").is_null() ? own_rates(groups) : per_group(values.at("warmup_max_lr"), groups.size())) {
    if (values.contains("total_num_steps")) total_ = values.at("total_num_steps").get<double>();
  }

  double lr(size_t group, int64_t t) const override { return t < 0 ? min_[group] : min_[group] + (max_[group] - min_[group]) * height(t); }

 private:
  double height(int64_t t) const {
    if (!climb_.over(t)) return climb_.height(t);
    if (!total_) return 1;
    return std::max(0.0, (*total_ - static_cast<double>(t)) / std::max(1.0, *total_ - climb_.steps()));
  }

  Climb climb_;
  std::vector<double> min_, max_;  // per group
  std::optional<double> total_;
};

// A part of each group's own rate.
class WarmupCosine final : public Curve {
 public:
  WarmupCosine(const nlohmann::json& values, const std::vector<GroupRates>& groups)
      : climb_(values),
        own_(own_rates(groups)),
        total_(values.at("total_num_steps").get<double>()),
        start_(values.at("warmup_min_ratio").get<double>()),
        end_(values.at("cos_min_ratio").get<double>()) {}

  double lr(size_t group, int64_t t) const override { return own_[group] * ratio(t); }

 private:
  double ratio(int64_t t) const {
    if (t < 0) return 0;
    if (!climb_.over(t)) return start_ + (1 - start_) * climb_.height(t);
    // Past the total the cosine would climb again.
    const double x = std::min(1.0, (static_cast<double>(t + 1) - climb_.steps()) / std::max(1.0, total_ - climb_.steps()));
    return end_ + (1 - end_) * (1 + std::cos(std::numbers::pi * x)) / 2;
  }

  Climb climb_;
  std::vector<double> own_;  // per group
  double total_;
  double start_, end_;  // ratios
};

}  // namespace

std::unique_ptr<Curve> make_warmup(const nlohmann::json& values, const std::vector<GroupRates>& groups) {
  return std::make_unique<Warmup>(values, groups);
}

std::unique_ptr<Curve> make_warmup_decay(const nlohmann::json& values, const std::vector<GroupRates>& groups) {
  return std::make_unique<Warmup>(values, groups);
}

std::unique_ptr<Curve> make_warmup_cosine(const nlohmann::json& values, const std::vector<GroupRates>& groups) {
  return std::make_unique<WarmupCosine>(values, groups);
}

}  // namespace deepspeed::schedule
