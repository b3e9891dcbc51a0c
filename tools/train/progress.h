// What a person sees while a model trains: a bar on a terminal, plain lines elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace deepspeed::train {

struct StepReport {
  int64_t step = 0;  // 1 for the first of the run
  double loss = 0;   // mean over ranks and micro batches
  double grad_norm = 0;
  bool skipped = false;
  double lr = 0;
  double tokens_per_s = 0;  // all ranks
  double step_s = 0;
  double rss_mb = 0;  // largest rank
};

// Writes to stderr. Used by rank 0 only.
class Progress {
 public:
  // style: auto (bar on a terminal), bar, lines, none. `first` and `last` are step numbers.
  Progress(const std::string& style, int64_t first, int64_t last, int64_t lines_every);
  void show(const StepReport& report);
  // Leaves the bar's line, so that other text can follow.
  void pause();

 private:
  bool bar_, lines_, colour_;
  int64_t first_, last_, every_;
  bool line_open_ = false;
  double smooth_tokens_ = 0;  // exponential mean
  double smooth_step_s_ = 0;
};

}  // namespace deepspeed::train
