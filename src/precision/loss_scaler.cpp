#include "precision/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::precision {
namespace {

using base::str;

// The largest power of two that a float holds: a scale beyond it turns every loss into infinity.
constexpr double kLargest = 0x1p127;

void require(bool good, const char* name, double got, const char* allowed) {
  if (!good) throw Error(ErrorCode::kConfigInvalid, "precision", str("loss scale, ", name, ": got ", got, ", allowed ", allowed));
}

}  // namespace

LossScaler::LossScaler(const LossScalerOptions& options) : options_(options), scale_(options.initial), tolerance_(options.hysteresis) {
  require(std::isfinite(options.initial) && options.initial > 0, options.dynamic ? "start" : "static scale", options.initial,
          "a finite number > 0");
  if (!options.dynamic) return;
  require(options.window > 0, "window", static_cast<double>(options.window), "> 0");
  require(options.hysteresis > 0, "hysteresis", static_cast<double>(options.hysteresis), "> 0");
  require(std::isfinite(options.minimum) && options.minimum > 0, "minimum", options.minimum, "a finite number > 0");
}

void LossScaler::update(bool overflow) {
  if (!options_.dynamic) return;
  if (overflow) {
    if (tolerance_ > 1) {
      --tolerance_;
    } else if (scale_ == options_.minimum && options_.raise_at_minimum) {
      throw Error(ErrorCode::kNumerics, "precision",
                  str("loss scale: got gradients that are not finite at its minimum ", scale_,
                      ", allowed finite ones there; the model diverges or does not fit fp16: lower the learning rate, take bf16, or lower ",
                      "fp16.min_loss_scale"));
    } else {
      scale_ = std::max(scale_ / 2, options_.minimum);
    }
    last_overflow_ = iteration_;
  } else {
    if (options_.consecutive_hysteresis) tolerance_ = options_.hysteresis;
    const int64_t clean = iteration_ - last_overflow_ - 1;
    if (clean > 0 && clean % options_.window == 0) {
      scale_ = std::min(scale_ * 2, std::max(scale_, kLargest));
      tolerance_ = options_.hysteresis;
    }
  }
  ++iteration_;
}

std::string LossScaler::state_json() const {
  return nlohmann::ordered_json{{"scale", scale_}, {"iteration", iteration_}, {"last_overflow", last_overflow_}, {"tolerance", tolerance_}}
      .dump();
}

void LossScaler::load_state_json(const std::string& text) {
  using nlohmann::json;
  try {
    const json state = json::parse(text);
    const auto scale = state.at("scale").get<double>();
    const auto iteration = state.at("iteration").get<int64_t>(), last = state.at("last_overflow").get<int64_t>(),
               tolerance = state.at("tolerance").get<int64_t>();
    if (!(scale > 0) || !std::isfinite(scale) || last < -1 || last >= std::max<int64_t>(iteration, 1) || tolerance < 1) {
      throw Error(ErrorCode::kCheckpointMismatch, "precision",
                  str("state of the loss scale: got ", text.substr(0, 120), ", allowed one that was saved"));
    }
    if (!options_.dynamic) return;
    scale_ = scale;
    iteration_ = iteration;
    last_overflow_ = last;
    tolerance_ = std::min(tolerance, options_.hysteresis);
  } catch (const json::exception& error) {
    throw Error(ErrorCode::kCheckpointMismatch, "precision",
                str("state of the loss scale: got ", text.substr(0, 120), ", allowed {scale, iteration, last_overflow, tolerance}"));
  }
}

}  // namespace deepspeed::precision
