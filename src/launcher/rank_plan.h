// From the command line to what each rank runs: command, environment, cores. Pure but for looking up the program.
#pragma once

#include <string>
#include <vector>

#include "base/environment.h"
#include "launcher/machine.h"
#include "launcher/program.h"

namespace deepspeed::launcher {

struct LaunchOptions {
  int ranks = 0;                    // 0: one per CUDA device, else 1
  std::string master_address;       // "": MASTER_ADDR, else 127.0.0.1
  int master_port = 0;              // 0: MASTER_PORT, else 29500 or the next free one
  bool bind_cores = false;          // each rank on its own cores
  std::string core_list;            // "": all cores that this process may use
  bool local_rank_argument = true;  // Python programs get --local_rank=N as their first argument
  ProgramKind kind = ProgramKind::kByName;
  std::vector<std::string> environment;  // K=V for the ranks
  std::string program;
  std::vector<std::string> arguments;
};

struct RankProcess {
  int rank = 0;
  std::vector<std::string> command;      // [0] is the file to execute
  std::vector<std::string> environment;  // K=V, complete
  std::vector<int> cores;                // empty: as inherited
};

struct RankPlan {
  std::vector<RankProcess> ranks;
  std::string summary;  // one line for the user: what was chosen
  std::string warning;  // one line, or ""
};

// The number of ranks that `options` mean on `machine`. Error(kUsage) when it is out of range.
int number_of_ranks(const LaunchOptions& options, const Machine& machine);

// Error(kUsage) on options that contradict each other, Error(kEnvironment) when the program is not there.
RankPlan make_rank_plan(const LaunchOptions& options, const Machine& machine, const base::Environment& environment, int master_port);

}  // namespace deepspeed::launcher
