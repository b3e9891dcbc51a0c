// The keeper: one small process between the launcher and each rank, so that nothing of a rank outlives the launcher.
//
//   launcher --fork--> keeper --fork, exec--> rank --> whatever the rank starts
//            control pipe ->   <- status pipe
//
// The keeper is a child subreaper: orphans below it become its children, so it knows when the rank and all its offspring are gone and can
// find all of them. It reads signal numbers, one byte each, from the control pipe and passes them to the rank's process group; SIGKILL,
// or the end of the pipe (the launcher is gone, however it ended), makes it kill everything. When the rank itself ends, the keeper
// reports that at once, asks what the rank left behind to end (SIGTERM), kills it a second later, and then ends itself.
// Should the keeper be killed, the rank gets SIGKILL from the kernel, and its orphans fall to the launcher, a subreaper too.
#pragma once

#include <signal.h>

#include <cstdint>
#include <vector>

#include "launcher/rank_plan.h"

namespace deepspeed::launcher {

// What comes through the status pipe; smaller than PIPE_BUF, so written whole.
struct KeeperReport {
  enum class Kind : int32_t {
    kStarted,      // the rank runs; pid is set
    kStartFailed,  // value: errno, stage says of what
    kExited,       // value: status as from waitpid
  };
  enum class Stage : int32_t { kFork, kBindCores, kExecute };

  Kind kind = Kind::kStarted;
  Stage stage = Stage::kFork;
  int32_t pid = 0;
  int32_t value = 0;
  int64_t time_ns = 0;  // CLOCK_MONOTONIC, for telling which of two ranks failed first
};

struct KeeperSetup {
  const RankProcess* process = nullptr;
  int control = -1;  // read end
  int status = -1;   // write end
  int input = -1;    // the rank's stdin, stdout, stderr; -1: as inherited
  int output = -1;
  int error = -1;
  std::vector<int> foreign;  // descriptors of the launcher that the keeper must not hold
  sigset_t original_mask{};  // signal mask for the rank
  bool restore_sigpipe = false;
};

// The body of the forked child. Never returns.
[[noreturn]] void run_keeper(const KeeperSetup& setup);

}  // namespace deepspeed::launcher
