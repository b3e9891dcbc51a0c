// The processes below a process, as /proc shows them.
#pragma once

#include <sys/types.h>

#include <vector>

namespace deepspeed::launcher {

// Children of `root`, their children and so on; without `root`. A snapshot: processes may come and go meanwhile.
std::vector<pid_t> descendants_of(pid_t root);

// Sends `signal` to every descendant of the calling process. With the caller a child subreaper (prctl) nothing escapes by ending its
// parent or by a session of its own; repeat until no child is left, as a process may fork while this looks.
void signal_descendants(int signal);

// Kills and reaps all descendants of the calling process, which must be a child subreaper. Returns when none is left.
void kill_descendants();

}  // namespace deepspeed::launcher
