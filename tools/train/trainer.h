// The training run of ds_train.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "deepspeed/data.h"
#include "deepspeed/engine.h"
#include "deepspeed/models.h"
#include "deepspeed/profile.h"
#include "train/loss_curve.h"
#include "train/options.h"
#include "train/progress.h"
#include "train/step_log.h"

namespace deepspeed::train {

// Set by SIGTERM and SIGINT: the run saves a checkpoint after the step and ends.
extern std::atomic<int> stop_signal;

class Trainer {
 public:
  explicit Trainer(Options options);
  // Returns the exit status.
  int run();

 private:
  struct Totals {
    double loss = 0;    // mean over ranks and micro batches
    double rss_mb = 0;  // largest rank
    bool stop = false;  // some rank was told to stop
  };

  bool leads() const { return communicator_->rank() == 0; }
  void open_model();
  void open_data();
  void resume();
  void one_step(int64_t step);
  Totals totals(double loss_sum);
  void evaluate(int64_t step);
  void sample(const std::string& when);
  void save();
  void report_profile(int64_t steps);
  void finish();

  Options options_;
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<CausalLM> model_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<BatchSource> data_, held_out_;
  std::unique_ptr<TextDecoder> decoder_;
  std::vector<int64_t> prompt_;
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<Profiler> profiler_;
  std::unique_ptr<StepLog> log_;
  Curve training_curve_{"training", "#1f77b4", {}}, held_out_curve_{"held out", "#d62728", {}};
  int64_t last_step_ = 0;
  int64_t saved_step_ = -1;
  bool stopped_ = false;
};

}  // namespace deepspeed::train
