// Starts the planned ranks, each below its keeper.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "launcher/rank_plan.h"

namespace deepspeed::launcher {

struct SpawnOptions {
  bool capture = false;       // stdout and stderr through pipes to the launcher; else inherited
  std::string log_directory;  // not empty: both into DIR/<date and time>_rank<r>.log instead
};

struct SpawnedRank {
  int rank = 0;
  pid_t keeper = 0;
  int control = -1;  // write signal numbers here
  int status = -1;   // read KeeperReports here (non-blocking)
  int output = -1;   // read ends (non-blocking), -1 unless captured
  int error = -1;
  std::string log_file;  // "" unless logged to a file
};

// Blocks `handled` signals in the calling process (they are for a signalfd then), ignores SIGPIPE, makes it a child subreaper and forks.
// The caller must be single-threaded. Rank 0 inherits stdin, the others get /dev/null. Error(kEnvironment) when the system refuses; ranks
// started before that end with the process, as their control pipes close.
std::vector<SpawnedRank> spawn_ranks(const RankPlan& plan, const SpawnOptions& options, const sigset_t& handled);

}  // namespace deepspeed::launcher
