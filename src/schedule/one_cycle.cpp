// OneCycle: the rate climbs and falls once while the first beta does the opposite, then both decay.
//
//   rate  min ____/\____    beta  max ‾‾‾‾\/‾‾‾‾     first half: first_ steps, second half: second_ steps
#include <cmath>

#include "schedule/curve.h"

namespace deepspeed::schedule {

namespace {

constexpr double kSecondBeta = 0.99;

class OneCycle final : public Curve {
 public:
  OneCycle(const nlohmann::json& values, size_t groups)
      : min_lr_(per_group(values.at("cycle_min_lr"), groups)),
        max_lr_(per_group(values.at("cycle_max_lr"), groups)),
        min_momentum_(per_group(values.at("cycle_min_mom"), groups)),
        max_momentum_(per_group(values.at("cycle_max_mom"), groups)),
        first_(values.at("cycle_first_step_size").get<double>()),
        second_(or_same(values.at("cycle_second_step_size"), first_)),
        first_stairs_(values.at("cycle_first_stair_count").get<double>()),
        second_stairs_(or_same(values.at("cycle_second_stair_count"), first_stairs_)),
        decay_step_(values.at("decay_step_size").get<double>()),
        decay_lr_(values.at("decay_lr_rate").get<double>()),
        decay_momentum_(values.at("decay_mom_rate").get<double>()),
        cycle_momentum_(values.at("cycle_momentum").get<bool>()) {}

  double lr(size_t group, int64_t t) const override {
    const double low = min_lr_[group];
    if (t < 0) return low;
    if (in_cycle(t)) return low + (max_lr_[group] - low) * height(t);
    return low / (1 + decay_lr_ * decay_units(t));
  }

  std::optional<std::pair<double, double>> betas(size_t group, int64_t t, bool fresh) const override {
    if (!cycle_momentum_) return std::nullopt;
    const double high = max_momentum_[group], low = min_momentum_[group];
    if (fresh) return {{low, kSecondBeta}};  // as the reference starts, although the cycle itself starts high
    if (t < 0) return {{high, kSecondBeta}};
    if (in_cycle(t)) return {{high - (high - low) * height(t), kSecondBeta}};
    return {{high * (1 + decay_momentum_ * decay_units(t)), kSecondBeta}};
  }

 private:
  static double or_same(const nlohmann::json& value, double same) { return value.is_null() ? same : value.get<double>(); }

  bool in_cycle(int64_t t) const { return static_cast<double>(t) < first_ + second_; }

  // Part of the way from bottom to top, 0 .. 1, after k = t + 1 steps.
  double height(int64_t t) const {
    const double total = first_ + second_;
    const double steps = static_cast<double>(t + 1);
    const double turns = 1 + steps / total;
    const double x = turns - std::floor(turns);  // position in the cycle; this order of operations rounds as the reference does
    const double ratio = first_ / total;
    const bool climbing = x <= ratio;
    const double stairs = climbing ? first_stairs_ : second_stairs_;
    if (stairs == 0) return climbing ? x / ratio : (x - 1) / (ratio - 1);
    // Whole steps, not x: a rounding error at the top must not cost a stair.
    const double inside = std::fmod(steps, total);
    const double position = inside <= first_ ? inside / first_ : (total - inside) / second_;
    return std::floor(position * stairs + kSlack) / stairs;
  }

  double decay_units(int64_t t) const { return decay_step_ == 0 ? 0 : (static_cast<double>(t + 1) - first_ - second_) / decay_step_; }

  static constexpr double kSlack = 1e-9;  // far below one step of any stair, far above rounding

  std::vector<double> min_lr_, max_lr_;              // per group
  std::vector<double> min_momentum_, max_momentum_;  // per group
  double first_, second_;                            // steps of the halves
  double first_stairs_, second_stairs_;              // 0: none
  double decay_step_, decay_lr_, decay_momentum_;
  bool cycle_momentum_;
};

}  // namespace

std::unique_ptr<Curve> make_one_cycle(const nlohmann::json& values, const std::vector<GroupRates>& groups) {
  return std::make_unique<OneCycle>(values, groups.size());
}

}  // namespace deepspeed::schedule
