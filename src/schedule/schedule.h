// The learning-rate schedule of a run: writes rates (and betas) into the parameter groups at each step.
//
//   auto schedule = make_schedule(config.scheduler.type, config.scheduler.params_json, groups);   // groups now hold the starting rates
//   optimizer.step(groups); schedule->step();                                                     // rates of the next optimizer step
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "schedule/curve.h"

namespace deepspeed::schedule {

// Not thread safe. The groups given to make_schedule must outlive it and keep their number.
class Schedule {
 public:
  Schedule(std::string type, std::unique_ptr<Curve> curve, std::vector<GroupRates>& groups, int64_t iteration,
           std::vector<std::string> notes);

  // The next iteration; call once per optimizer step that was applied.
  void step();
  // Sets the iteration directly; the next step() continues from it. Negative values mean "before the start".
  void step_to(int64_t iteration);
  // Writes the current iteration's rates into the groups. Needed only after load_state_json, which leaves the groups alone.
  void apply();

  int64_t iteration() const { return iteration_; }  // calls of step() less one; -1 at the start
  std::vector<double> last_lr() const;              // per group, as of the current iteration
  const std::string& type() const { return type_; }
  const std::vector<std::string>& notes() const { return notes_; }  // what a user should know about the parameters

  // {"last_batch_iteration": N}, as DeepSpeed stores it.
  std::string state_json() const;
  // Throws Error(kCheckpointMismatch) for anything else, and then changes nothing.
  void load_state_json(const std::string& text);

 private:
  std::string type_;
  std::unique_ptr<Curve> curve_;  // null: the groups keep their rates
  std::vector<GroupRates>& groups_;
  int64_t iteration_;
  bool fresh_;  // nothing but construction has happened
  std::vector<std::string> notes_;
};

// `type` as in scheduler.type; "" makes a schedule that keeps all rates. `params_json` is the text of scheduler.params. Writes the starting
// rates into `groups`. Throws Error: kNotBuilt for a schedule of torch, else kConfigInvalid that names every bad parameter; then `groups` is
// unchanged.
std::unique_ptr<Schedule> make_schedule(const std::string& type, const std::string& params_json, std::vector<GroupRates>& groups);

}  // namespace deepspeed::schedule
