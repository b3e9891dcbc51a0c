// The factor that keeps fp16 gradients in range: the loss is multiplied with it before backward, gradients are divided by it before the step.
//
// Dynamic: s starts at `initial`, tolerance h at H, i counts steps, L is the last overflow's i (-1 at first).
//   overflow  h = 1: s halves, not below the minimum; at the minimum it is an Error. h > 1: h falls by 1. Then L = i
//   clean     consecutive: h = H. Each time `window` clean steps have passed since L: s doubles, h = H
// The first doubling after the start or an overflow comes one step later than the following ones, as in DeepSpeed. A step that doubles the scale
// still divides by the scale that its loss was multiplied with: read scale() before update().
#pragma once

#include <cstdint>
#include <string>

namespace deepspeed::precision {

struct LossScalerOptions {
  bool dynamic = true;
  double initial = 65536.0;  // > 0; the scale for good when not dynamic
  int64_t window = 1000;     // > 0
  int64_t hysteresis = 2;    // > 0
  bool consecutive_hysteresis = false;
  double minimum = 1.0;  // > 0
  bool raise_at_minimum = true;
};

// Not thread safe.
class LossScaler {
 public:
  // Throws Error(kConfigInvalid) that names an option out of range.
  explicit LossScaler(const LossScalerOptions& options);

  double scale() const { return scale_; }
  int64_t tolerance_left() const { return tolerance_; }
  bool dynamic() const { return options_.dynamic; }

  // After each step. Throws Error(kNumerics) when a gradient overflows although the scale is at its minimum; nothing changes then.
  void update(bool overflow);

  // {"scale": 65536.0, "iteration": 12, "last_overflow": 3, "tolerance": 2}
  std::string state_json() const;
  // Takes over the state of a dynamic scaler; a static one keeps its scale. Throws Error(kCheckpointMismatch) for anything else, and then changes
  // nothing.
  void load_state_json(const std::string& text);

 private:
  LossScalerOptions options_;
  double scale_;
  int64_t tolerance_;
  int64_t iteration_ = 0;
  int64_t last_overflow_ = -1;
};

}  // namespace deepspeed::precision
