#include "engine/engine_impl.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <regex>

#include "accel/device.h"
#include "accel/pool.h"
#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "engine/shard_check.h"
#include "optim/flat_muon.h"
#include "optim/make_optimizer.h"
#include "zero/interception.h"
#include "zero/unit_planner.h"

namespace deepspeed::engine {
namespace {

at::ScalarType scalar_type(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return at::kFloat;
    case DataType::kFloat16:
      return at::kHalf;
    case DataType::kBFloat16:
      return at::kBFloat16;
  }
  DS_CHECK(false, static_cast<int>(type));
  return at::kFloat;
}

const char* precision_name(at::ScalarType type) { return type == at::kFloat ? "fp32" : type == at::kHalf ? "fp16" : "bf16"; }

// fp16 weights by their section; fp16 autocast by the rule of torch's GradScaler, which knows no hysteresis.
precision::LossScalerOptions scaler_options(const Config& config) {
  precision::LossScalerOptions options;
  const auto& fp16 = config.fp16;
  if (!fp16.enabled) {
    options.window = 2000;
    options.hysteresis = 1;
    return options;
  }
  options.dynamic = fp16.loss_scale == 0;
  options.initial = options.dynamic ? std::ldexp(1.0, fp16.initial_scale_power) : fp16.loss_scale;
  options.window = fp16.loss_scale_window;
  options.hysteresis = fp16.hysteresis;
  options.consecutive_hysteresis = fp16.consecutive_hysteresis;
  options.minimum = fp16.min_loss_scale;
  return options;
}

}  // namespace

EngineImpl::EngineImpl(tensor::ModuleTensors tensors, const EngineOptions& options, Config config,
                       std::shared_ptr<Communicator> communicator)
    : config_(std::move(config)),
      policy_(zero::policy_of(config_.zero.stage)),
      communicator_(std::move(communicator)),
      device_(accel::choose_device(options.device, rank_info_from_environment().local_rank)),
      probe_(at::empty({0}, at::TensorOptions().device(device_))),
      working_type_(config_.fp16.enabled   ? at::kHalf
                    : config_.bf16.enabled ? at::kBFloat16
                                           : at::kFloat),
      share_memory_(options.share_memory) {
  at::NoGradGuard no_grad;
  zero::InterceptionOff off;
  if (tensors.parameters.empty())
    throw Error(ErrorCode::kUsage, "engine", "initialize: got a module without parameters, allowed at least one");
  compare_layouts(*communicator_, describe_model(tensors, config_.zero.stage), "at the start", probe_);
  if (policy_.shard_parameters && communicator_->size() > 1) {
    gathers_ = communicator_->duplicate("parameters");
  } else {
    gathers_ = communicator_;
  }
  std::vector<int> group_of;
  make_groups(options, tensors, &group_of);
  make_units(tensors, group_of);
  adopt_buffers(tensors);
  make_optimizer();
  const bool half_autocast = config_.torch_autocast.enabled && config_.torch_autocast.dtype == DataType::kFloat16;
  if (config_.fp16.enabled || half_autocast) scaler_.emplace(scaler_options(config_));
  schedule_ = schedule::make_schedule(config_.scheduler.type, config_.scheduler.params_json, rates_);
  make_gradient_flow();
  saver_ = std::make_unique<checkpoint::Saver>(communicator_, probe_);
  if (communicator_->rank() == 0) {
    for (const auto& note : config_.notes) base::log_info(note);
    base::log_info(describe());
    if (config_.dump_state) base::log_info("configuration: ", config_.source_json);
  }
}

void EngineImpl::activate() {
  if (residency_) zero::hold_interception();
}

EngineImpl::~EngineImpl() {
  saver_.reset();
  gradients_.reset();
  if (residency_) {
    zero::drop_interception();
    residency_.reset();
  }
  // The ranks go their own ways from here: what one does to its module is no business of the others.
  if (parameters_) parameters_->make_private();
}

void EngineImpl::make_groups(const EngineOptions& options, const tensor::ModuleTensors& tensors, std::vector<int>* group_of) {
  std::vector<ParameterGroup> wanted = options.groups;
  if (wanted.empty()) wanted.emplace_back();
  std::vector<std::regex> patterns;
  for (const auto& group : wanted) {
    try {
      patterns.emplace_back(group.match, std::regex::ECMAScript);
    } catch (const std::regex_error& error) {
      throw Error(ErrorCode::kUsage, "engine", base::str("parameter group: got the expression \"", group.match, "\", ", error.what()));
    }
  }
  // Muon cuts every group in two: matrices, and what its Adam updates.
  const bool muon = config_.optimizer.type == "muon";
  const size_t parts = muon ? 2 : 1;
  std::vector<int64_t> sizes(wanted.size() * parts, 0);
  std::vector<int> first(tensors.parameters.size(), -1);
  for (size_t i = 0; i < tensors.parameters.size(); ++i) {
    const auto& parameter = tensors.parameters[i];
    if (!parameter.tensor.requires_grad()) continue;
    for (size_t g = 0; g < wanted.size() && first[i] < 0; ++g) {
      if (wanted[g].match == "." || std::regex_search(parameter.name, patterns[g])) first[i] = static_cast<int>(g);
    }
    if (first[i] < 0) {
      throw Error(
          ErrorCode::kUsage, "engine",
          base::str("parameter groups: got none that matches parameter ", parameter.name, ", allowed one for each trained parameter"));
    }
    if (muon) first[i] = 2 * first[i] + (optim::takes_matrix_rule(parameter.name, parameter.tensor.sizes().vec()) ? 0 : 1);
    ++sizes[static_cast<size_t>(first[i])];
  }
  // Empty groups are dropped, so that rates and groups stay one list.
  std::vector<int> renumbered(sizes.size(), -1);
  for (size_t part = 0; part < sizes.size(); ++part) {
    const size_t g = part / parts;
    const bool matrices = muon && part % parts == 0;
    if (matrices && sizes[part] > 0 && sizes[part + 1] == 0 && (wanted[g].betas || wanted[g].eps)) {
      throw Error(ErrorCode::kUsage, "engine",
                  base::str("parameter group: got betas or eps (expression \"", wanted[g].match,
                            "\"), allowed where Muon's Adam updates a parameter; all of this group are matrices"));
    }
    if (sizes[part] == 0) continue;
    renumbered[part] = static_cast<int>(groups_.size());
    const auto& defaults = config_.optimizer;
    groups_.push_back({wanted[g].eps.value_or(defaults.eps), wanted[g].weight_decay.value_or(defaults.weight_decay), matrices});
    rates_.push_back({wanted[g].lr.value_or(muon && !matrices ? defaults.adam_lr : defaults.lr), {}});
    if (matrices) continue;
    if (defaults.has_betas() || muon) {
      rates_.back().betas = wanted[g].betas.value_or(std::make_pair(defaults.beta1, defaults.beta2));
    } else if (wanted[g].betas) {
      throw Error(ErrorCode::kUsage, "engine",
                  base::str("parameter group: got betas (expression \"", wanted[g].match,
                            "\"), allowed for Adam, AdamW, Lamb and Lion, not ", defaults.type));
    }
  }
  if (groups_.empty()) {
    throw Error(ErrorCode::kUsage, "engine", "initialize: got no parameter that requires a gradient, allowed at least one");
  }
  group_of->assign(first.size(), 0);
  for (size_t i = 0; i < first.size(); ++i) (*group_of)[i] = first[i] < 0 ? 0 : renumbered[static_cast<size_t>(first[i])];
}

void EngineImpl::make_units(const tensor::ModuleTensors& tensors, const std::vector<int>& group_of) {
  std::vector<zero::PlannedParameter> planned;
  for (size_t i = 0; i < tensors.parameters.size(); ++i) {
    const auto& [name, tensor, aliases] = tensors.parameters[i];
    if (!at::isFloatingType(tensor.scalar_type())) {
      throw Error(ErrorCode::kUsage, "engine",
                  base::str("initialize: got a parameter of type ", c10::toString(tensor.scalar_type()),
                            ", allowed floating types (parameter ", name, ")"));
    }
    planned.push_back({name, tensor.sizes().vec(), tensor.numel(), tensor.requires_grad(), group_of[i]});
  }
  const auto plans = zero::plan_units(planned, policy_, config_.zero);
  std::vector<tensor::UnitLayout> layouts;
  size_t bytes = 0;
  for (const auto& plan : plans) {
    std::vector<tensor::Slot> slots;
    for (const size_t i : plan.members) slots.push_back({planned[i].name, planned[i].shape, planned[i].elements, 0});
    layouts.emplace_back(std::move(slots), communicator_->size());
    bytes += static_cast<size_t>(layouts.back().padded_elements()) * c10::elementSize(working_type_);
  }
  // Where a rank updates its own shard only, all ranks of one host can work on one copy.
  if (share_memory_ && policy_.shard_optimizer && device_.is_cpu() && communicator_->size() > 1) {
    parameters_ = communicator_->share_memory(bytes, "parameters");
  }
  std::vector<zero::Unit*> sharded;
  size_t offset = 0;
  for (size_t u = 0; u < plans.size(); ++u) {
    const auto& plan = plans[u];
    std::vector<at::Tensor> members;
    for (const size_t i : plan.members) members.push_back(tensors.parameters[i].tensor);
    zero::SharedPlace place;
    if (parameters_) place = {parameters_, offset};
    offset += static_cast<size_t>(layouts[u].padded_elements()) * c10::elementSize(working_type_);
    auto unit = std::make_unique<zero::Unit>(static_cast<int>(u), std::move(layouts[u]), std::move(members), working_type_, device_,
                                             communicator_->rank(), plan.trainable, plan.group, plan.always_whole, std::move(place));
    if (communicator_->size() > 1 && unit->elements() > 0 && !unit->shared()) {
      communicator_->broadcast(unit->flat(), 0, base::str("initial values of ", unit->label()))->wait();
    }
    unit->adopt_shard();
    if (unit->trainable()) trained_.push_back(units_.size());
    if (!unit->always_whole()) sharded.push_back(unit.get());
    units_.push_back(std::move(unit));
  }
  // The module's own tensors are gone; what the C library keeps of them would stay resident beside the units.
  accel::give_back_freed_memory();
  if (parameters_) communicator_->barrier("initial values");
  if (sharded.empty()) return;
  residency_ = std::make_unique<zero::Residency>(sharded, gathers_, config_.zero);
}

void EngineImpl::adopt_buffers(const tensor::ModuleTensors& tensors) {
  buffers_ = tensors.buffers;
  for (const auto& [name, buffer, aliases] : tensors.buffers) {
    auto value = buffer.to(device_);
    if (at::isFloatingType(value.scalar_type()) && working_type_ != at::kFloat) value = value.to(working_type_);
    if (value.unsafeGetTensorImpl() != buffer.unsafeGetTensorImpl()) at::Tensor(buffer).set_data(value);
    if (communicator_->size() > 1 && buffer.numel() > 0) {
      auto contiguous = buffer.contiguous();
      communicator_->broadcast(contiguous, 0, base::str("initial values of buffer ", name))->wait();
      if (!contiguous.is_same(buffer)) at::Tensor(buffer).copy_(contiguous);
    }
  }
}

void EngineImpl::make_optimizer() {
  Config::Optimizer chosen = config_.optimizer;
  if (chosen.type == "adam" && !chosen.adam_w_mode && !chosen.torch_adam && device_.is_cpu()) {
    // Measured: DeepSpeed's fused Adam ignores adam_w_mode on CPUs. Same configuration, same numbers; the user is told how to get the other form.
    chosen.adam_w_mode = true;
    if (communicator_->rank() == 0 && config_.optimizer.weight_decay != 0) {
      base::log_warning(
          "optimizer Adam with adam_w_mode false: weight decay is decoupled on the CPU, as in DeepSpeed's fused Adam there; add ",
          "\"torch_adam\": true to optimizer.params for decay inside the gradient");
    }
  }
  if (chosen.type == "muon" && !policy_.shard_optimizer && communicator_->rank() == 0) {
    // Measured: DeepSpeed turns matrices in stages 1 and 2 only. Same configuration, same numbers; the user is told how to get the rule.
    base::log_warning(
        "optimizer Muon in stage 0: matrices take plain gradient steps, without momentum and Newton-Schulz iteration, as in DeepSpeed ",
        "0.18.4; stages 1 to 3, with one rank too, have Muon's rule");
  }
  std::vector<optim::RunLayout> runs;
  for (const size_t index : trained_) {
    const auto& unit = *units_[index];
    const at::Tensor& working = policy_.shard_optimizer ? unit.shard() : unit.flat();
    const auto whole = tensor::Range{0, unit.elements()};
    runs.push_back(optim::run_layout(unit.layout(), policy_.shard_optimizer ? unit.layout().shard(communicator_->rank()) : whole));
    runs.back().matrices = groups_[static_cast<size_t>(unit.group())].matrices;
    // In fp32 the working values are the master; 16-bit values get an fp32 one that starts from them.
    masters_.push_back(working_type_ == at::kFloat ? working : working.to(at::kFloat));
  }
  optimizer_ = optim::make_optimizer(chosen, runs, device_);
}

void EngineImpl::make_gradient_flow() {
  gradients_.reset();  // its hooks make room for new ones
  gradient_options_ = {};
  zero::GradientOptions& options = gradient_options_;
  options.policy = policy_;
  const bool accumulates = config_.gradient_accumulation_steps > 1 || by_hand_;
  options.buffer_type = config_.grad_accum_dtype ? scalar_type(*config_.grad_accum_dtype) : accumulates ? at::kFloat : working_type_;
  options.wire_type = config_.communication_data_type ? scalar_type(*config_.communication_data_type) : options.buffer_type;
  options.overlap = config_.zero.overlap_comm.value_or(true);
  options.reduce_scatter = config_.zero.reduce_scatter;
  options.ignore_unused = config_.zero.ignore_unused_parameters;
  const double ranks = communicator_->size();
  options.scale_before = config_.prescale_gradients ? 1.0 / ranks : 1.0 / config_.gradient_predivide_factor;
  std::vector<zero::Unit*> trained;
  int64_t largest = 0;
  for (const size_t index : trained_) {
    trained.push_back(units_[index].get());
    largest = std::max(largest, trained.back()->elements());
  }
  // Two under way hide a late rank; more only hold memory.
  constexpr size_t kInFlight = 2;
  options.in_flight = residency_ ? 0 : kInFlight;
  const bool every_pass_reduces = policy_.shard_gradients || !accumulates;
  if (parameters_ && every_pass_reduces && options.wire_type == options.buffer_type) {
    // Those under way, the one that fills, and one whose gradients come early and late (a tied embedding).
    constexpr size_t kSlots = kInFlight + 2;
    const size_t bytes = static_cast<size_t>(largest) * c10::elementSize(options.buffer_type);
    const auto memory = communicator_->share_memory(static_cast<size_t>(communicator_->size()) * kSlots * bytes, "gradients");
    if (memory) options.slots = std::make_shared<zero::GradientSlots>(memory, communicator_->rank(), kSlots, bytes);
  }
  gradients_ = std::make_unique<zero::GradientFlow>(std::move(trained), communicator_, options);
  gradients_->on_unit_complete([this](zero::Unit* unit) {
    // The step will change these values, so the gathered ones are of no further use. Within accumulation they stay valid.
    if (residency_ && boundary_pass_ && !unit->always_whole()) residency_->release(unit);
  });
}

std::vector<std::vector<double>> EngineImpl::momenta_of_groups() const {
  std::vector<std::vector<double>> momenta;
  for (const auto& group : rates_) {
    if (group.betas) {
      momenta.push_back({group.betas->first, group.betas->second});
    } else if (config_.optimizer.type == "SGD" || config_.optimizer.type == "muon") {
      momenta.push_back({config_.optimizer.momentum});
    } else {
      momenta.emplace_back();
    }
  }
  return momenta;
}

MemoryPlan EngineImpl::memory_plan() const {
  MemoryPlan plan;
  const auto width = static_cast<int64_t>(c10::elementSize(working_type_));
  int64_t sharded_elements = 0, trained_elements = 0, largest_unit = 0;
  size_t trained = 0;
  for (const auto& unit : units_) {
    plan.parameters += unit->layout().elements();
    plan.parameter_bytes += (unit->always_whole() && !unit->shared() ? unit->elements() : unit->layout().shard_elements()) * width;
    if (!unit->always_whole()) sharded_elements += unit->elements();
    if (!unit->trainable()) continue;
    plan.trainable += unit->layout().elements();
    const int64_t owned = policy_.shard_optimizer ? unit->layout().shard_elements() : unit->elements();
    plan.optimizer_bytes += owned * optimizer_->states().bytes_per_element(trained++) + (working_type_ == at::kFloat ? 0 : owned * 4);
    plan.gradient_bytes += owned * 4;
    trained_elements += unit->elements();
    largest_unit = std::max(largest_unit, unit->elements());
  }
  // Beside the reduced sums: buffers of units whose reduction is not done. Unbounded overlapped reductions may all be under way at the end of
  // backward, and stages 0 and 1 keep every buffer through the accumulation.
  const bool unbounded = gradient_options_.overlap && gradient_options_.in_flight == 0;
  const bool all_at_once = unbounded || (!policy_.shard_gradients && config_.gradient_accumulation_steps > 1);
  const int64_t buffers = gradient_options_.overlap ? static_cast<int64_t>(gradient_options_.in_flight) + 1 : 1;
  plan.gradient_bytes += (all_at_once ? trained_elements : std::min(trained_elements, buffers * largest_unit)) *
                         static_cast<int64_t>(c10::elementSize(gradient_options_.buffer_type));
  plan.gathered_bytes = std::min(sharded_elements, config_.zero.max_live_parameters) * width;
  plan.units = static_cast<int64_t>(units_.size());
  return plan;
}

std::string EngineImpl::describe() const {
  const MemoryPlan plan = memory_plan();
  return base::str(
      "ZeRO stage ", config_.zero.stage, ", ", precision_name(working_type_),
      config_.torch_autocast.enabled ? base::str(" with autocast in ", config_.torch_autocast.dtype == DataType::kFloat16 ? "fp16" : "bf16")
                                     : std::string(),
      ", ", communicator_->size(), communicator_->size() == 1 ? " rank (" : " ranks (", communicator_->backend(), "), ",
      base::human_count(static_cast<double>(plan.parameters)), " parameters (", base::human_count(static_cast<double>(plan.trainable)),
      " trained) in ", plan.units, " units on ", device_.str(), "; per rank: parameters ",
      base::human_bytes(static_cast<double>(plan.parameter_bytes)), parameters_ ? " (its part of one copy for all ranks)" : "",
      ", gathered at most ", base::human_bytes(static_cast<double>(plan.gathered_bytes)), ", gradients at most ",
      base::human_bytes(static_cast<double>(plan.gradient_bytes)), ", optimizer ",
      base::human_bytes(static_cast<double>(plan.optimizer_bytes)));
}

}  // namespace deepspeed::engine
