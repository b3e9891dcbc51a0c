// LRRangeTest: the rate grows by a fixed amount per stair, to find where training breaks.
#include <cmath>

#include "schedule/curve.h"

namespace deepspeed::schedule {

std::vector<double> per_group(const nlohmann::json& value, size_t groups) {
  return value.is_array() ? value.get<std::vector<double>>() : std::vector<double>(groups, value.get<double>());
}

namespace {

class RangeTest final : public Curve {
 public:
  RangeTest(const nlohmann::json& values, size_t groups)
      : start_(per_group(values.at("lr_range_test_min_lr"), groups)),
        step_size_(values.at("lr_range_test_step_size").get<double>()),
        step_rate_(values.at("lr_range_test_step_rate").get<double>()),
        staircase_(values.at("lr_range_test_staircase").get<bool>()) {}

  double lr(size_t group, int64_t t) const override {
    if (t < 0) return start_[group];
    const double stairs = static_cast<double>(t + 1) / step_size_;
    return start_[group] * (1 + step_rate_ * (staircase_ ? std::floor(stairs) : stairs));
  }

 private:
  std::vector<double> start_;  // per group
  double step_size_;
  double step_rate_;
  bool staircase_;
};

}  // namespace

std::unique_ptr<Curve> make_range_test(const nlohmann::json& values, const std::vector<GroupRates>& groups) {
  return std::make_unique<RangeTest>(values, groups.size());
}

}  // namespace deepspeed::schedule
