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

struct LoadedCheckpoint {
  std::string path;          // directory that was loaded
  std::string client_state;  // JSON text given to save_checkpoint
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

  // Interception on this thread while the object lives.
  class Scope {
   public:
    Scope();
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    bool before_;
  };
  Scope scope() const { return Scope(); }

  // Runs `call` (usually the model's forward) in a scope. Any thread may do so.
  at::Tensor forward(const std::function<at::Tensor()>& call);

  // Backward of loss / gradient_accumulation_steps, times the loss scale in fp16; reduces gradients as the stage says. Returns
  // loss / gradient_accumulation_steps, detached.
  at::Tensor backward(const at::Tensor& loss);
  // Every micro batch calls step(); the optimizer moves only at the boundary of accumulation.
  void step();

  bool is_gradient_accumulation_boundary() const;
  void train(bool mode = true);
  void eval() { train(false); }
  void zero_grad();  // forgets gradients accumulated since the last boundary

  std::vector<double> get_lr() const;                  // per group, as the next step will use
  std::vector<std::vector<double>> get_mom() const;    // per group: the betas, the momentum of SGD alone, or nothing
  std::optional<double> get_global_grad_norm() const;  // of the last step, before clipping; empty: none yet, or not finite
  double loss_scale() const;                           // that the next backward uses; 1 in fp32 and bf16
  bool was_step_applied() const;                       // false: the last step was skipped
  int64_t skipped_steps() const;
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
  // `client_state` is JSON text of the caller's. Throws on every rank when any rank fails; older checkpoints stay untouched.
  std::string save_checkpoint(const std::string& directory, const std::string& tag = "", const std::string& client_state = "{}");
  // Loads DIR/TAG; an empty tag means what DIR/latest names. Collective. A missing checkpoint is an Error.
  LoadedCheckpoint load_checkpoint(const std::string& directory, const std::string& tag = "");

  // Parameters of `tensors` hold their full values while the returned object lives (stage 3); writes inside are kept on all ranks when every
  // rank makes the same ones, or those of `modifier_rank` when given.
  std::shared_ptr<void> gathered_parameters(const std::vector<at::Tensor>& tensors, std::optional<int> modifier_rank = std::nullopt);

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
