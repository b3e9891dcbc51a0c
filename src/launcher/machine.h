// What the launcher has to know about this machine. Found without torch and without a driver library, so that it takes no time.
#pragma once

#include <string>
#include <vector>

#include "base/environment.h"

namespace deepspeed::launcher {

struct Machine {
  // Cores that this process may run on; hyperthreads of one physical core stand side by side, so that equal parts share none.
  std::vector<int> cores;
  // Cores' worth of time that it may use: below cores.size() when a container has a CPU quota. At least 1.
  int core_budget = 1;
  int cuda_devices = 0;
  std::string device_source;  // what told the number of devices, for the user
};

Machine inspect_machine(const base::Environment& environment);

// Devices that a value of CUDA_VISIBLE_DEVICES leaves visible: numbers or UUIDs up to the first negative one.
int count_visible_devices(const std::string& value);

}  // namespace deepspeed::launcher
