// The training engine: ZeRO, mixed precision, optimizer and schedule around a LibTorch module, without a change to the module.
//
//   auto engine = deepspeed::initialize(model, {.config_path = "ds_config.json"});
//   auto loss = model->forward(x).sum();      // the model's own call
//   engine->backward(loss);
//   engine->step();
//
// In stage 3 parameters hold no data between uses; every operator that touches one gathers it first (src/zero/interception.h). That works on
// the thread that called initialize() and inside forward(); other threads wrap their use in engine->scope(). When the engine ends, parameters that
// are cut into shards stay without data: take what is needed with full_parameters() or save_checkpoint() before. Ranks of one host hold one
// copy together instead (EngineOptions::share_memory): always whole, and at the engine's end each rank's view becomes its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "deepspeed/comm.h"
#include "deepspeed/config.h"
#include "deepspeed/error.h"
#include "deepspeed/precision.h"

namespace torch::nn {
class Module;
template <typename Contained>
class ModuleHolder;
}  // namespace torch::nn
namespace torch::jit {
struct Module;
}

namespace deepspeed {

// A set of parameters with optimizer settings of their own. A parameter joins the first group it matches.
struct ParameterGroup {
  std::string match = ".";  // ECMAScript regular expression, searched in the parameter's name
  std::optional<double> lr, eps, weight_decay;
  std::optional<std::pair<double, double>> betas;
};

struct EngineOptions {
  std::string config_path;                     // ds_config.json; or
  std::string config_json;                     // its text. Exactly one of the two is given
  std::vector<ParameterGroup> groups;          // empty: one group of all trainable parameters
  std::shared_ptr<Communicator> communicator;  // empty: init_distributed()
  std::string device = "auto";                 // auto, cpu, cuda, cuda:N
  // Stages 1 to 3, CPU ranks of one host on the shm back end: one copy of the parameters for all of them. Writes to a parameter outside the optimizer
  // then belong inside gathered_parameters(). false: every rank has its own (stage 3: gathers it). No effect elsewhere.
  bool share_memory = true;
};

struct SaveOptions {
  // Returns once the state has been copied to host memory, and writes it beside training. The copy stays, for the next save. What goes wrong comes out of the
  // next step() (which is complete then), save_checkpoint() or wait_for_checkpoint(), as an Error on every rank.
  bool async = false;
  int keep_last = 0;  // removes all but so many of the newest checkpoints of the directory, after the new one is in place; 0: keeps all
};

struct LoadOptions {
  bool fallback = false;  // a checkpoint that is missing or damaged: take the newest whole one of the directory, with a warning
};

struct LoadedCheckpoint {
  std::string path;          // directory that was loaded
  std::string client_state;  // JSON text given to save_checkpoint
  std::string damage;        // LoadOptions::fallback: why it is not the one that was asked for; empty: it is
};

// Bytes per rank, estimated before the first step.
struct MemoryPlan {
  int64_t parameters = 0;       // elements of the model
  int64_t trainable = 0;        // elements that are trained
  int64_t parameter_bytes = 0;  // resident parameters: shards and what always stays whole
  int64_t gathered_bytes = 0;   // largest amount gathered at a time, as the configuration allows
  int64_t gradient_bytes = 0;   // at most: reduced sums and the buffers of units in reduction
  int64_t optimizer_bytes = 0;  // moments and fp32 masters
  int64_t units = 0;
};

// train = micro * accumulation * ranks that share the batch.
struct BatchInfo {
  int64_t train_batch_size = 0;
  int64_t train_micro_batch_size_per_gpu = 0;
  int64_t gradient_accumulation_steps = 0;
};

namespace engine {
class EngineImpl;
}

// One per model. Not thread safe. All ranks must make the same calls in the same order.
class Engine {
 public:
  explicit Engine(std::unique_ptr<engine::EngineImpl> impl);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // On this thread while the object lives: interception, and the number formats of the configuration (PrecisionManager).
  class Scope {
   public:
    explicit Scope(engine::EngineImpl& impl);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    engine::EngineImpl& impl_;
    bool before_;
    PrecisionManager precision_;
  };
  Scope scope() const { return Scope(*impl_); }

  // Runs `call` (usually the model's forward) in a scope. Any thread may do so. With `torch_autocast` in the configuration the loss must come from
  // here or from inside scope().
  at::Tensor forward(const std::function<at::Tensor()>& call);

  // Backward of loss / gradient_accumulation_steps (of the loss itself without `scale_wrt_gas`), times the loss scale in fp16; reduces gradients as
  // the stage says. Returns the loss it went through, detached and without the loss scale.
  at::Tensor backward(const at::Tensor& loss, bool scale_wrt_gas = true);
  // Every micro batch calls step(); the optimizer moves only at the boundary of accumulation.
  void step();

  // While the returned object lives, backward() only adds gradients up on each rank, as often as wanted; step() is an error. The first
  // backward() or step() after it brings them to all ranks. Stages 0 and 1.
  std::shared_ptr<void> no_sync();
  // From now on the caller says whether the next backward() and step() are at a boundary, and gradient_accumulation_steps is only the divisor of
  // losses. Between boundaries backward() may be called several times per step(). True before the last micro batch, or before step() at the
  // latest, ends an accumulation early. The same on all ranks.
  void set_gradient_accumulation_boundary(bool is_boundary);
  bool is_gradient_accumulation_boundary() const;
  void train(bool mode = true);
  void eval() { train(false); }
  void zero_grad();  // forgets gradients accumulated since the last boundary; the next micro batch is the first of an accumulation

  BatchInfo get_batch_info() const;
  // Between two boundaries only, on all ranks. The first changes gradient_accumulation_steps: `size` must be a multiple of micro batch * ranks.
  // The second keeps those and changes train_batch_size.
  void set_train_batch_size(int64_t size);
  void set_train_micro_batch_size(int64_t size);

  std::vector<double> get_lr() const;                  // per group, as the next step will use
  std::vector<std::vector<double>> get_mom() const;    // per group: the betas, the momentum of SGD alone, or nothing
  std::optional<double> get_global_grad_norm() const;  // of the last step, before clipping; empty: none yet, or not finite
  double loss_scale() const;                           // that the next backward uses; 1 in fp32 and bf16
  bool was_step_applied() const;                       // false: the last step was skipped
  int64_t skipped_steps() const;
  int64_t consecutive_skipped_steps() const;  // up to the last step
  int64_t global_steps() const;
  int64_t global_samples() const;
  int64_t micro_steps() const;
  const Config& config() const;
  Communicator& communicator() const;
  const at::Tensor& device_probe() const;  // empty tensor on the engine's device
  MemoryPlan memory_plan() const;

  // Full fp32 values of every parameter on rank 0 (on all ranks when `everywhere`), by name, from the masters where there are any; CPU.
  // Collective. Other ranks get an empty map.
  std::map<std::string, at::Tensor> full_parameters(bool everywhere = false);

  // Writes DIR/TAG atomically (docs/formats/checkpoint.md) and points DIR/latest at it. Default tag: global_step<N>. Collective.
  // `client_state` is JSON text of the caller's. Throws on every rank when any rank fails; older checkpoints stay untouched. Two savers at work in one
  // directory are refused.
  std::string save_checkpoint(const std::string& directory, const std::string& tag = "", const std::string& client_state = "{}",
                              const SaveOptions& options = {});
  // Returns when no save is under way; throws what the last one in the background met. The engine's end waits, too. Collective.
  void wait_for_checkpoint();
  // Loads DIR/TAG; an empty tag means what DIR/latest names. Collective. A missing or damaged checkpoint is an Error; all checksums are compared before
  // anything is overwritten.
  LoadedCheckpoint load_checkpoint(const std::string& directory, const std::string& tag = "", const LoadOptions& options = {});

  // Parameters of `tensors` hold their full values while the returned object lives (stage 3); writes inside are kept on all ranks when every
  // rank makes the same ones, or those of `modifier_rank` when given.
  std::shared_ptr<void> gathered_parameters(const std::vector<at::Tensor>& tensors, std::optional<int> modifier_rank = std::nullopt);

  // What stands behind one parameter of the module, whatever the stage. "full": in the parameter's shape, fp32, a copy on the engine's device.
  // "local": this rank's part of it, flat and possibly empty; all of it where the stage does not cut. Values are those of the masters. Gradients
  // are the means over ranks, summed over micro batches, without the loss scale and before clipping; they are there from the backward() that
  // reduces them (at the boundary; in stages 2 and 3 every one) until step(). States go by their names here or by torch's (exp_avg, exp_avg_sq,
  // momentum_buffer, sum). Collective: all getters of full values, and both setters of parameters. Setters take any floating type, from all ranks the
  // same values, in the shape that the getter returns. Misuse is an Error(kUsage) that names the parameter.
  at::Tensor safe_get_full_fp32_param(const at::Tensor& parameter);
  at::Tensor safe_get_full_grad(const at::Tensor& parameter);
  at::Tensor safe_get_full_optimizer_state(const at::Tensor& parameter, const std::string& state);
  void safe_set_full_fp32_param(const at::Tensor& parameter, const at::Tensor& value);
  void safe_set_full_grad(const at::Tensor& parameter, const at::Tensor& value);
  void safe_set_full_optimizer_state(const at::Tensor& parameter, const std::string& state, const at::Tensor& value);
  at::Tensor safe_get_local_fp32_param(const at::Tensor& parameter);
  at::Tensor safe_get_local_grad(const at::Tensor& parameter);
  at::Tensor safe_get_local_optimizer_state(const at::Tensor& parameter, const std::string& state);
  void safe_set_local_fp32_param(const at::Tensor& parameter, const at::Tensor& value);
  void safe_set_local_grad(const at::Tensor& parameter, const at::Tensor& value);
  void safe_set_local_optimizer_state(const at::Tensor& parameter, const std::string& state, const at::Tensor& value);

  engine::EngineImpl& impl() { return *impl_; }

 private:
  std::unique_ptr<engine::EngineImpl> impl_;
};

// Takes over the parameters of `model`: they move to the device and precision of the configuration and become views into flat buffers.
// Weights of rank 0 are sent to all ranks. The module must outlive the engine's use of it.
std::unique_ptr<Engine> initialize(std::shared_ptr<torch::nn::Module> model, const EngineOptions& options);
std::unique_ptr<Engine> initialize(torch::jit::Module& model, const EngineOptions& options);
// A model in LibTorch's usual holder (TORCH_MODULE).
template <typename Contained>
std::unique_ptr<Engine> initialize(const torch::nn::ModuleHolder<Contained>& model, const EngineOptions& options) {
  return initialize(std::shared_ptr<torch::nn::Module>(model.ptr()), options);
}

}  // namespace deepspeed
