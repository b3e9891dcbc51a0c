#include <ATen/autocast_mode.h>

#include <atomic>

#include "base/log.h"
#include "base/text.h"
#include "deepspeed/precision.h"
#include "engine/autocast_off.h"

namespace deepspeed {
namespace {

std::atomic<bool> override_logged = false;

at::ScalarType lowered_type(const Config& config) { return config.torch_autocast.dtype == DataType::kFloat16 ? at::kHalf : at::kBFloat16; }

}  // namespace

PrecisionManager::PrecisionManager(const Config& config, c10::DeviceType device) : device_(device) {
  const bool section = config.fp16.enabled || config.bf16.enabled;
  const bool wanted = config.torch_autocast.enabled;
  enabled_before_ = at::autocast::is_autocast_enabled(device_);
  if (!wanted && !(section && enabled_before_)) return;
  type_before_ = at::autocast::get_autocast_dtype(device_);
  active_ = true;
  const at::ScalarType type = wanted ? lowered_type(config) : type_before_;
  if (enabled_before_ && (!wanted || type != type_before_) && !override_logged.exchange(true)) {
    base::log_warning("precision: the configuration has ",
                      wanted                ? base::str("torch_autocast in ", c10::toString(type))
                      : config.fp16.enabled ? std::string("fp16")
                                            : std::string("bf16"),
                      ", which overrides the autocast scope around the model (", c10::toString(type_before_), ")");
  }
  if (!wanted) {
    at::autocast::set_autocast_enabled(device_, false);
    return;
  }
  opened_ = true;
  at::autocast::increment_nesting();
  at::autocast::set_autocast_enabled(device_, true);
  at::autocast::set_autocast_dtype(device_, type);
}

PrecisionManager::~PrecisionManager() {
  if (!active_) return;
  // Casts of weights are kept for the length of the outermost scope.
  at::autocast::set_autocast_enabled(device_, enabled_before_);
  at::autocast::set_autocast_dtype(device_, type_before_);
  if (opened_ && at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
}

namespace engine {

AutocastOff::AutocastOff(c10::DeviceType device) : device_(device), before_(at::autocast::is_autocast_enabled(device)) {
  if (before_) at::autocast::set_autocast_enabled(device_, false);
}

AutocastOff::~AutocastOff() {
  if (before_) at::autocast::set_autocast_enabled(device_, true);
}

void forget_autocast_copies() { at::autocast::clear_cache(); }

}  // namespace engine
}  // namespace deepspeed
