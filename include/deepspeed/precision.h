// Which number formats hold while a model is called.
//
//   1. fp16 or bf16 in the configuration: the weights have that type, and autocast scopes around the call are off
//   2. torch_autocast in the configuration: autocast in that type, whatever scopes stand around
//   3. neither: the autocast scope around the call, if there is one
//   4. casts inside the model, within what 1 to 3 left
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "deepspeed/config.h"

namespace deepspeed {

// Applies the order above to this thread while it lives; scopes that the model opens inside take effect inside. Engine::forward() and
// Engine::scope() hold one. Overriding a scope that asks for something else is logged, once per process.
class PrecisionManager {
 public:
  explicit PrecisionManager(const Config& config, c10::DeviceType device = c10::DeviceType::CPU);
  ~PrecisionManager();
  PrecisionManager(const PrecisionManager&) = delete;
  PrecisionManager& operator=(const PrecisionManager&) = delete;

 private:
  c10::DeviceType device_;
  bool active_ = false;  // changed anything
  bool opened_ = false;  // stands for an autocast scope of its own
  bool enabled_before_ = false;
  c10::ScalarType type_before_ = c10::ScalarType::Float;
};

}  // namespace deepspeed
