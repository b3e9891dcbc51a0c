// Rows: parameters of the learning-rate schedules. A list of rates holds one value per parameter group.
#include <array>

#include "config/schema.h"

namespace deepspeed::config {

namespace {

using enum Type;
using enum Status;

constexpr Key kStart = {"last_batch_iteration", kInteger, "-1", ">= -1", kBuilt, "", "", "Calls of step() that count as done, less one."};
constexpr Key kTotal = {"total_num_steps", kInteger, "required", "> 0", kBuilt, "", "", "Step at which the schedule ends."};
constexpr Key kWarmupSteps = {"warmup_num_steps", kInteger, "1000", "> 0", kBuilt, "", "", "Steps of warm-up; 1 counts as 2."};
constexpr Key kWarmupType = {"warmup_type", kChoice, "\"log\"", "log | linear", kBuilt, "", "", "Shape of the warm-up."};
constexpr Key kWarmupMin = {"warmup_min_lr", kNumberOrList, "0.0", ">= 0", kBuilt, "", "", "Rate at the start."};

constexpr Key kRangeTest[] = {
    {"lr_range_test_min_lr", kNumberOrList, "0.001", ">= 0", kBuilt, "", "", "Rate at the start."},
    {"lr_range_test_step_size", kInteger, "2000", "> 0", kBuilt, "", "", "Steps per stair."},
    {"lr_range_test_step_rate", kNumber, "1.0", ">= 0", kBuilt, "", "", "Growth per stair, in units of the start rate."},
    {"lr_range_test_staircase", kBool, "false", "", kBuilt, "", "", "Jump at stairs instead of growing at each step."},
    kStart,
};

constexpr Key kOneCycle[] = {
    {"cycle_min_lr", kNumberOrList, "required", ">= 0", kBuilt, "", "", "Rate at both ends of the cycle."},
    {"cycle_max_lr", kNumberOrList, "required", ">= 0", kBuilt, "", "", "Rate at the top of the cycle."},
    {"decay_lr_rate", kNumber, "0.0", ">= 0", kBuilt, "", "", "Decay of the rate after the cycle."},
    {"cycle_first_step_size", kInteger, "2000", "> 0", kBuilt, "", "", "Steps of the first half."},
    {"cycle_second_step_size", kInteger, "", "> 0", kBuilt, "", "", "Steps of the second half; unset: as the first."},
    {"cycle_first_stair_count", kInteger, "0", ">= 0", kBuilt, "", "", "Stairs of the first half; 0: none, a straight line."},
    {"cycle_second_stair_count", kInteger, "", ">= 0", kBuilt, "", "", "Stairs of the second half; unset: as the first."},
    {"decay_step_size", kInteger, "0", ">= 0", kBuilt, "", "", "Steps per unit of decay after the cycle; 0: no decay."},
    {"cycle_momentum", kBool, "true", "", kBuilt, "", "", "Cycle the first beta against the rate; the second becomes 0.99."},
    {"cycle_min_mom", kNumberOrList, "0.8", "0 .. 1", kBuilt, "", "", "First beta at the top of the cycle."},
    {"cycle_max_mom", kNumberOrList, "0.9", "0 .. 1", kBuilt, "", "", "First beta at both ends of the cycle."},
    {"decay_mom_rate", kNumber, "0.0", ">= 0", kBuilt, "", "", "Growth of the first beta after the cycle."},
    kStart,
};

constexpr Key kWarmup[] = {
    kWarmupMin,
    {"warmup_max_lr", kNumberOrList, "", ">= 0", kBuilt, "", "", "Rate after warm-up; unset: the optimizer's rate of each group."},
    kWarmupSteps,
    kWarmupType,
    kStart,
};

constexpr Key kWarmupDecay[] = {
    kTotal,       kWarmupMin,  {"warmup_max_lr", kNumberOrList, "0.001", ">= 0", kBuilt, "", "", "Rate after warm-up."},
    kWarmupSteps, kWarmupType, kStart,
};

constexpr Key kWarmupCosine[] = {
    kTotal,
    {"warmup_min_ratio", kNumber, "0.0", "0 .. 1", kBuilt, "", "", "Start of the warm-up, as a part of the optimizer's rate."},
    kWarmupSteps,
    {"cos_min_ratio", kNumber, "0.0001", "0 .. 1", kBuilt, "", "", "End of the cosine, as a part of the optimizer's rate."},
    kWarmupType,
    kStart,
};

struct Schedule {
  std::string_view name;
  std::span<const Key> parameters;
};

constexpr Schedule kSchedules[] = {
    {"LRRangeTest", kRangeTest},     {"OneCycle", kOneCycle},           {"WarmupLR", kWarmup},
    {"WarmupDecayLR", kWarmupDecay}, {"WarmupCosineLR", kWarmupCosine},
};

}  // namespace

std::span<const Key> schedule_parameters(std::string_view schedule) {
  for (const auto& entry : kSchedules) {
    if (entry.name == schedule) return entry.parameters;
  }
  return {};
}

const std::vector<std::string_view>& schedule_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> result;
    for (const auto& entry : kSchedules) result.push_back(entry.name);
    return result;
  }();
  return names;
}

}  // namespace deepspeed::config
