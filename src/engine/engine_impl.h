// What an Engine is made of: it composes the rooms below and knows no model.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/trace.h"
#include "deepspeed/engine.h"
#include "optim/optimizer.h"
#include "precision/loss_scaler.h"
#include "schedule/schedule.h"
#include "tensor/parameter_list.h"
#include "zero/gradient_flow.h"
#include "zero/residency.h"
#include "zero/unit.h"

namespace deepspeed::engine {

// Counters that a checkpoint carries.
struct Progress {
  int64_t global_steps = 0;  // boundaries passed, skipped ones included
  int64_t skipped_steps = 0;
  int64_t micro_steps = 0;
  int64_t global_samples = 0;
  int64_t optimizer_steps = 0;  // updates applied; Adam's t
};

class EngineImpl {
 public:
  EngineImpl(tensor::ModuleTensors tensors, const EngineOptions& options, Config config, std::shared_ptr<Communicator> communicator);
  ~EngineImpl();

  // Switches interception on for the calling thread until the engine ends (on that thread).
  void activate();

  at::Tensor backward(const at::Tensor& loss);
  void step();
  void zero_grad();
  bool at_boundary() const { return (progress_.micro_steps + 1) % config_.gradient_accumulation_steps == 0; }

  // How train() and eval() reach the module.
  void on_training_mode(std::function<void(bool)> call) { set_mode_ = std::move(call); }
  void set_training(bool mode) {
    if (set_mode_) set_mode_(mode);
  }

  std::map<std::string, at::Tensor> full_parameters(bool everywhere);
  std::shared_ptr<void> gathered_parameters(const std::vector<at::Tensor>& tensors, std::optional<int> modifier_rank);
  MemoryPlan memory_plan() const;

  // Part `index` of the training state as the checkpoint sees it: this rank's shard of each unit, whatever the stage.
  struct UnitState {
    const zero::Unit* unit;
    at::Tensor parameter;            // fp32 master when trained, else the working values; [shard]
    std::vector<at::Tensor> states;  // of the optimizer, in the order of state_names(); fp32 [shard]; none when frozen
  };
  std::vector<UnitState> unit_states();
  const std::vector<std::string>& state_names() { return optimizer_->states().names(); }
  // After parameters and states have been overwritten through unit_states(): brings working copies and other ranks up to date.
  void publish_loaded_state();

  const Config& config() const { return config_; }
  Communicator& communicator() { return *communicator_; }
  const at::Tensor& device_probe() const { return probe_; }
  Progress& progress() { return progress_; }
  schedule::Schedule* schedule() { return schedule_.get(); }
  const std::vector<schedule::GroupRates>& rates() const { return rates_; }
  // Per group: betas, the momentum alone, or nothing.
  std::vector<std::vector<double>> momenta_of_groups() const;
  std::optional<double> grad_norm() const { return grad_norm_; }
  double loss_scale() const { return scaler_ ? scaler_->scale() : 1.0; }
  std::optional<precision::LossScaler>& scaler() { return scaler_; }
  bool step_applied() const { return step_applied_; }
  const zero::ResidencyStatistics* residency_statistics() const { return residency_ ? &residency_->statistics() : nullptr; }
  // Loads set these so that a schedule-less run keeps its rates.
  std::vector<schedule::GroupRates>& mutable_rates() { return rates_; }

 private:
  struct Group {
    double eps, weight_decay;
  };

  void make_groups(const EngineOptions& options, const tensor::ModuleTensors& tensors, std::vector<int>* group_of);
  void make_units(const tensor::ModuleTensors& tensors, const std::vector<int>& group_of);
  void adopt_buffers(const tensor::ModuleTensors& tensors);
  void make_optimizer();
  void make_gradient_flow();
  void optimizer_step();
  void skip_step();
  optim::RunUpdate run_update(size_t trained, double grad_scale) const;
  void print_progress();
  void publish_parameters();
  std::string describe() const;

  Config config_;
  zero::Policy policy_;
  std::shared_ptr<Communicator> communicator_;  // gradients, norms, checkpoints
  std::shared_ptr<Communicator> gathers_;       // parameters: their order is the model's, not the reductions'
  c10::Device device_;
  at::Tensor probe_;
  at::ScalarType working_type_;
  bool share_memory_;
  std::shared_ptr<SharedMemory> parameters_;  // one copy of all units for the ranks of this host, where they can share; else empty

  std::vector<std::unique_ptr<zero::Unit>> units_;
  std::vector<size_t> trained_;  // indices of trainable units
  std::vector<Group> groups_;
  std::vector<schedule::GroupRates> rates_;  // per group: what the next step uses
  std::vector<at::Tensor> masters_;          // by trained unit: fp32, [shard] or [padded] when optimizer state is whole
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<schedule::Schedule> schedule_;
  std::optional<precision::LossScaler> scaler_;  // fp16 only
  std::unique_ptr<zero::Residency> residency_;   // stage 3 only
  zero::GradientOptions gradient_options_;
  std::unique_ptr<zero::GradientFlow> gradients_;
  std::function<void(bool)> set_mode_;
  bool backward_done_ = false;
  bool boundary_pass_ = false;

  // wall_clock_breakdown: milliseconds since the last line. What passes outside backward() and step() is the model's forward and its data.
  struct Clock {
    std::chrono::steady_clock::time_point mark = std::chrono::steady_clock::now();
    double forward = 0, backward = 0, step = 0;
    void lap(double* target) {
      const auto now = std::chrono::steady_clock::now();
      *target += std::chrono::duration<double, std::milli>(now - mark).count();
      mark = now;
    }
  } clock_;
  trace::Mark mark_;  // end of the last step, while a trace is recorded

  Progress progress_;
  std::optional<double> grad_norm_;
  bool step_applied_ = false;
};

}  // namespace deepspeed::engine
