// Watches the ranks until the last one is gone.
//
//   running --a rank fails--> stopping: SIGTERM to the others at once, SIGKILL 1.5 s later
//   running --SIGINT, SIGTERM, SIGHUP, SIGQUIT--> asked to end: the signal goes to all ranks, SIGKILL after the grace period
//   either  --one more such signal--> SIGKILL now
// SIGUSR1 and SIGUSR2 are only passed on. SIGTSTP stops the ranks and the launcher; SIGCONT lets all go on.
#pragma once

#include <signal.h>

#include <chrono>
#include <vector>

#include "launcher/relay.h"
#include "launcher/spawn.h"

namespace deepspeed::launcher {

struct SuperviseOptions {
  std::chrono::milliseconds grace{30000};  // for ranks that were asked to end, e.g. to save a checkpoint
  std::vector<pid_t> outsiders;            // processes below this one that are not ranks: left alone
};

// The signals that supervise() wants; those that were ignored when the launcher started (nohup) stay so.
sigset_t handled_signals();

// Returns the exit status for the launcher: 0 when all ranks ended well, else that of the rank that failed first (128 + number for a
// signal), 4 when it could not be started. Requires the signals to be blocked, as spawn_ranks() leaves them. Prints through `relay`.
int supervise(const std::vector<SpawnedRank>& ranks, Relay& relay, const SuperviseOptions& options);

}  // namespace deepspeed::launcher
