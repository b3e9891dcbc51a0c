// The public face.
#include "deepspeed/engine.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include "base/text.h"
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

Engine::Scope::Scope(engine::EngineImpl& impl)
    : impl_(impl),
      before_(!impl.gathers_on_touch() || zero::set_interception(true)),
      precision_(impl.config(), impl.device_probe().device().type()) {
  impl_.enter_scope();
}

Engine::Scope::~Scope() {
  impl_.leave_scope();
  if (impl_.gathers_on_touch()) zero::set_interception(before_);
}

at::Tensor Engine::forward(const std::function<at::Tensor()>& call) {
  const Scope scope(*impl_);
  return call();
}

at::Tensor Engine::backward(const at::Tensor& loss, bool scale_wrt_gas) { return impl_->backward(loss, scale_wrt_gas); }
std::shared_ptr<void> Engine::no_sync() { return impl_->no_sync(); }
void Engine::set_gradient_accumulation_boundary(bool is_boundary) { impl_->set_boundary(is_boundary); }
BatchInfo Engine::get_batch_info() const {
  const Config& config = impl_->config();
  return {config.train_batch_size, config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps};
}
void Engine::set_train_batch_size(int64_t size) { impl_->set_train_batch_size(size); }
void Engine::set_train_micro_batch_size(int64_t size) { impl_->set_train_micro_batch_size(size); }
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
int64_t Engine::consecutive_skipped_steps() const { return impl_->consecutive_skips(); }
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

using engine::Extent;
using engine::Quantity;

at::Tensor Engine::safe_get_full_fp32_param(const at::Tensor& parameter) {
  return impl_->read(parameter, Quantity::kParameter, {}, Extent::kFull);
}
at::Tensor Engine::safe_get_full_grad(const at::Tensor& parameter) {
  return impl_->read(parameter, Quantity::kGradient, {}, Extent::kFull);
}
at::Tensor Engine::safe_get_full_optimizer_state(const at::Tensor& parameter, const std::string& state) {
  return impl_->read(parameter, Quantity::kState, state, Extent::kFull);
}
void Engine::safe_set_full_fp32_param(const at::Tensor& parameter, const at::Tensor& value) {
  impl_->write(parameter, Quantity::kParameter, {}, Extent::kFull, value);
}
void Engine::safe_set_full_grad(const at::Tensor& parameter, const at::Tensor& value) {
  impl_->write(parameter, Quantity::kGradient, {}, Extent::kFull, value);
}
void Engine::safe_set_full_optimizer_state(const at::Tensor& parameter, const std::string& state, const at::Tensor& value) {
  impl_->write(parameter, Quantity::kState, state, Extent::kFull, value);
}
at::Tensor Engine::safe_get_local_fp32_param(const at::Tensor& parameter) {
  return impl_->read(parameter, Quantity::kParameter, {}, Extent::kLocal);
}
at::Tensor Engine::safe_get_local_grad(const at::Tensor& parameter) {
  return impl_->read(parameter, Quantity::kGradient, {}, Extent::kLocal);
}
at::Tensor Engine::safe_get_local_optimizer_state(const at::Tensor& parameter, const std::string& state) {
  return impl_->read(parameter, Quantity::kState, state, Extent::kLocal);
}
void Engine::safe_set_local_fp32_param(const at::Tensor& parameter, const at::Tensor& value) {
  impl_->write(parameter, Quantity::kParameter, {}, Extent::kLocal, value);
}
void Engine::safe_set_local_grad(const at::Tensor& parameter, const at::Tensor& value) {
  impl_->write(parameter, Quantity::kGradient, {}, Extent::kLocal, value);
}
void Engine::safe_set_local_optimizer_state(const at::Tensor& parameter, const std::string& state, const at::Tensor& value) {
  impl_->write(parameter, Quantity::kState, state, Extent::kLocal, value);
}

std::string Engine::save_checkpoint(const std::string& directory, const std::string& tag, const std::string& client_state,
                                    const SaveOptions& options) {
  return engine::save_engine(*impl_, directory, tag, client_state, options);
}

void Engine::wait_for_checkpoint() { impl_->saver().wait(); }

LoadedCheckpoint Engine::load_checkpoint(const std::string& directory, const std::string& tag, const LoadOptions& options) {
  return engine::load_engine(*impl_, directory, tag, options);
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
