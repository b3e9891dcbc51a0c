// Backward runs in the types of forward, and its operators must not be cast once more: autocast is off on this thread while the object lives.
#pragma once

#include <c10/core/DeviceType.h>

namespace deepspeed::engine {

class AutocastOff {
 public:
  explicit AutocastOff(c10::DeviceType device);
  ~AutocastOff();
  AutocastOff(const AutocastOff&) = delete;
  AutocastOff& operator=(const AutocastOff&) = delete;

 private:
  c10::DeviceType device_;
  bool before_;
};

// Autocast keeps casts of weights; after an update they are stale, which matters when one scope spans several steps.
void forget_autocast_copies();

}  // namespace deepspeed::engine
