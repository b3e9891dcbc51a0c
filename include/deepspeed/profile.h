// Where the time of a training run goes, per rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "deepspeed/comm.h"

namespace deepspeed {

// Records what engines and communicators do on the calling thread (and in its backward passes on the CPU) from its construction on: forward, backward,
// optimizer, gather, reduce, wait. One at a time per thread.
class Profiler {
 public:
  Profiler();
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // Ends the recording of all ranks. Rank 0 writes `chrome_trace` (a file for chrome://tracing or Perfetto; "": none) and gets the table of
  // phases and collectives; the others get "". `steps`: optimizer steps recorded, for the times per step. Collective.
  // Throws Error(kFile) on rank 0.
  std::string finish(Communicator& communicator, const std::string& chrome_trace, int64_t steps);
};

}  // namespace deepspeed
