// The whole of a launch: plan, port, processes, supervision.
#pragma once

#include <chrono>
#include <string>

#include "launcher/rank_plan.h"

namespace deepspeed::launcher {

struct LaunchRequest {
  LaunchOptions options;
  bool prefix = true;         // `[rank r] ` before each line, when there are several ranks
  std::string log_directory;  // not empty: each rank's output into a file there
  bool save_pid = false;      // own process id into TEMPORARY_FOLDER/PID.deepspeed while running
  std::chrono::milliseconds grace{30000};
};

// Runs the ranks to their end and returns the exit status for the process. Error(kUsage) or Error(kEnvironment) when they
// cannot be started. The process must be single-threaded and be done afterwards: signal handling stays changed.
int launch(const LaunchRequest& request);

}  // namespace deepspeed::launcher
