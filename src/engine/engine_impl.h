// What an Engine is made of: it composes the rooms below and knows no model.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/trace.h"
#include "checkpoint/saver.h"
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

// What of a parameter the safe accessors reach, and how much of it.
enum class Quantity { kParameter, kGradient, kState };
enum class Extent { kFull, kLocal };

class EngineImpl {
 public:
  EngineImpl(tensor::ModuleTensors tensors, const EngineOptions& options, Config config, std::shared_ptr<Communicator> communicator);
  ~EngineImpl();

  // Switches interception on for the calling thread until the engine ends (on that thread).
  void activate();

  at::Tensor backward(const at::Tensor& loss, bool scale_wrt_gas);
  void step();
  void zero_grad();
  bool at_boundary() const { return boundary_set_.value_or((steps_since_boundary_ + 1) % config_.gradient_accumulation_steps == 0); }

  // The caller's hand in accumulation (accumulation.cpp).
  std::shared_ptr<void> no_sync();
  void set_boundary(bool is_boundary);
  void set_train_batch_size(int64_t size);
  void set_train_micro_batch_size(int64_t size);
  // Throws Error(kUsage) that names `call`.
  void expect_between_boundaries(const char* call) const;

  // Parameters may be without data until an operator touches them.
  bool gathers_on_touch() const { return residency_ != nullptr; }

  // A scope begins and ends, on any thread.
  void enter_scope() {
    ++open_scopes_;
    scope_used_ = true;
  }
  void leave_scope() { --open_scopes_; }

  // The safe accessors (parameter_access.cpp); `state` is looked at with kState only.
  at::Tensor read(const at::Tensor& parameter, Quantity quantity, const std::string& state, Extent extent);
  void write(const at::Tensor& parameter, Quantity quantity, const std::string& state, Extent extent, const at::Tensor& value);

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

  const std::vector<std::unique_ptr<zero::Unit>>& units() const { return units_; }
  const std::vector<tensor::NamedTensor>& buffers() const { return buffers_; }  // of the module, as it uses them
  checkpoint::Saver& saver() { return *saver_; }

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
  int64_t consecutive_skips() const { return consecutive_skips_; }
  const zero::ResidencyStatistics* residency_statistics() const { return residency_ ? &residency_->statistics() : nullptr; }
  // Loads set these so that a schedule-less run keeps its rates.
  std::vector<schedule::GroupRates>& mutable_rates() { return rates_; }

 private:
  struct Group {
    double eps, weight_decay;
    bool matrices = false;  // of Muon
  };

  // Where a parameter lies.
  struct Place {
    zero::Unit* unit = nullptr;
    size_t slot = 0;
    std::optional<size_t> trained;  // position in trained_; empty: frozen
  };
  // A flat tensor that holds a quantity of a unit: [shard] when cut, else [padded].
  struct Held {
    at::Tensor tensor;
    bool cut = false;
    double factor = 1.0;  // times this it is what the caller means
  };

  void make_groups(const EngineOptions& options, const tensor::ModuleTensors& tensors, std::vector<int>* group_of);
  void make_units(const tensor::ModuleTensors& tensors, const std::vector<int>& group_of);
  void adopt_buffers(const tensor::ModuleTensors& tensors);
  void make_optimizer();
  void make_gradient_flow();
  void optimizer_step();
  void skip_step();
  double square_sum_of_directions(double scale_after);
  void direct(const optim::RunUpdate& update);
  void limit_skips();
  void begin_accumulation();
  void accumulate_by_hand();
  // From a summed gradient to the mean over ranks, without the loss scale.
  double gradient_factor() const;
  const std::unordered_map<const c10::TensorImpl*, Place>& places();
  Place place_of(const at::Tensor& parameter, const char* call);
  Held held(const Place& place, Quantity quantity, const std::string& state, const std::string& call);
  tensor::Range own_range(const Place& place, bool cut) const;
  void write_parameter(const Place& place, Extent extent, const at::Tensor& value);
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

  std::vector<tensor::NamedTensor> buffers_;
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
  std::unordered_map<const c10::TensorImpl*, Place> places_;  // filled when first asked for
  std::function<void(bool)> set_mode_;
  bool backward_done_ = false;
  bool boundary_pass_ = false;  // the last backward() was the last of its step
  bool unsynced_pass_ = false;  // it was inside no_sync()
  // Accumulation.
  std::optional<bool> boundary_set_;   // by the caller; empty: every gradient_accumulation_steps
  int64_t steps_since_boundary_ = 0;   // calls of step()
  int64_t passes_since_boundary_ = 0;  // calls of backward()
  int no_sync_depth_ = 0;
  bool by_hand_ = false;  // the caller has used no_sync() or set a boundary
  std::atomic<int> open_scopes_ = 0;
  std::atomic<bool> scope_used_ = false;  // since the last backward()

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
  std::unique_ptr<checkpoint::Saver> saver_;
  bool save_failed_ = false;  // on some rank, as the last step's ranks found
  std::optional<double> grad_norm_;
  bool step_applied_ = false;
  int64_t consecutive_skips_ = 0;
};

}  // namespace deepspeed::engine
