// The public face.
#include "deepspeed/engine.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include "base/text.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "engine/checkpoint_state.h"
#include "engine/engine_impl.h"
#include "zero/interception.h"

namespace deepspeed {
namespace {

std::unique_ptr<Engine> make_engine(tensor::ModuleTensors tensors, const EngineOptions& options) {
  if (options.config_path.empty() == options.config_json.empty()) {
    throw Error(ErrorCode::kUsage, "engine", "initialize: exactly one of config_path and config_json must be given");
  }
  auto communicator = options.communicator ? options.communicator : init_distributed();
  Config config = options.config_path.empty() ? parse_config(options.config_json, communicator->size())
                                              : load_config(options.config_path, communicator->size());
  auto impl = std::make_unique<engine::EngineImpl>(std::move(tensors), options, std::move(config), std::move(communicator));
  impl->activate();
  return std::make_unique<Engine>(std::move(impl));
}

}  // namespace

Engine::Engine(std::unique_ptr<engine::EngineImpl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

Engine::Scope::Scope() : before_(zero::set_interception(true)) {}
Engine::Scope::~Scope() { zero::set_interception(before_); }

at::Tensor Engine::forward(const std::function<at::Tensor()>& call) {
  const Scope scope;
  return call();
}

at::Tensor Engine::backward(const at::Tensor& loss) { return impl_->backward(loss); }
void Engine::step() { impl_->step(); }
bool Engine::is_gradient_accumulation_boundary() const { return impl_->at_boundary(); }
void Engine::train(bool mode) { impl_->set_training(mode); }
void Engine::zero_grad() { impl_->zero_grad(); }

std::vector<double> Engine::get_lr() const {
  std::vector<double> rates;
  for (const auto& group : impl_->rates()) rates.push_back(group.lr);
  return rates;
}

std::vector<std::vector<double>> Engine::get_mom() const { return impl_->momenta_of_groups(); }

std::optional<double> Engine::get_global_grad_norm() const { return impl_->grad_norm(); }
double Engine::loss_scale() const { return impl_->loss_scale(); }
bool Engine::was_step_applied() const { return impl_->step_applied(); }
int64_t Engine::skipped_steps() const { return impl_->progress().skipped_steps; }
int64_t Engine::global_steps() const { return impl_->progress().global_steps; }
int64_t Engine::global_samples() const { return impl_->progress().global_samples; }
int64_t Engine::micro_steps() const { return impl_->progress().micro_steps; }
const Config& Engine::config() const { return impl_->config(); }
Communicator& Engine::communicator() const { return impl_->communicator(); }
const at::Tensor& Engine::device_probe() const { return impl_->device_probe(); }
MemoryPlan Engine::memory_plan() const { return impl_->memory_plan(); }
std::map<std::string, at::Tensor> Engine::full_parameters(bool everywhere) { return impl_->full_parameters(everywhere); }

std::shared_ptr<void> Engine::gathered_parameters(const std::vector<at::Tensor>& tensors, std::optional<int> modifier_rank) {
  return impl_->gathered_parameters(tensors, modifier_rank);
}

std::string Engine::save_checkpoint(const std::string& directory, const std::string& tag, const std::string& client_state) {
  return engine::save_engine(*impl_, directory, tag, client_state);
}

LoadedCheckpoint Engine::load_checkpoint(const std::string& directory, const std::string& tag) {
  return engine::load_engine(*impl_, directory, tag);
}

std::unique_ptr<Engine> initialize(std::shared_ptr<torch::nn::Module> model, const EngineOptions& options) {
  if (!model) throw Error(ErrorCode::kUsage, "engine", "initialize: got an empty module pointer, allowed a module");
  auto engine = make_engine(tensor::list_tensors(*model), options);
  engine->impl().on_training_mode([model](bool mode) { model->train(mode); });
  return engine;
}

std::unique_ptr<Engine> initialize(torch::jit::Module& model, const EngineOptions& options) {
  auto engine = make_engine(tensor::list_tensors(model), options);
  engine->impl().on_training_mode([model](bool mode) mutable { model.train(mode); });
  return engine;
}

}  // namespace deepspeed
