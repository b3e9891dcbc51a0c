// units/optimizers: parameters and states after chosen steps, on the kernels that training uses.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <vector>

#include "conformance/unit_file.h"
#include "deepspeed/config.h"
#include "deepspeed/error.h"
#include "deepspeed/safetensors.h"
#include "kernels/adagrad.h"
#include "kernels/adam.h"
#include "kernels/lamb.h"
#include "kernels/lion.h"
#include "kernels/sgd.h"
#include "optim/flat_muon.h"

namespace deepspeed::conformance {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

// One parameter: the values that the optimizer works on, and its states.
struct Parameter {
  at::Tensor value, first, second, third;  // fp32
  int64_t step = 0;
  int64_t counted = 0;  // steps counted here, where one parameter counts for all
  double trust = 1;
};

at::ScalarType type_of(const std::string& word) { return word == "bf16" ? at::kBFloat16 : word == "fp16" ? at::kHalf : at::kFloat; }

at::Tensor rounded(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.to(type).to(at::kFloat, false, /*copy=*/true).contiguous();
}

struct Hyper {
  Json json;
  bool in_float = false;  // DeepSpeed's own kernels take their numbers in fp32, torch's in double

  double kept(double value) const { return in_float ? static_cast<double>(static_cast<float>(value)) : value; }
  double number(const char* name, double fallback) const { return kept(json.value(name, fallback)); }
  bool flag(const char* name, bool fallback) const { return json.value(name, fallback); }
  double beta(size_t i, double fallback) const { return kept(json.contains("betas") ? json["betas"][i].get<double>() : fallback); }
};

void adam_step(const std::string& kind, const Hyper& h, double lr, Parameter& p, const at::Tensor& gradient) {
  const kernels::AdamStep step{.lr = lr,
                               .beta1 = h.beta(0, 0.9),
                               .beta2 = h.beta(1, 0.999),
                               .eps = h.number("eps", 1e-8),
                               .weight_decay = h.number("weight_decay", kind == "adamw" ? 0.01 : 0.0),
                               // The fused optimizer ignores adam_w_mode on CPUs (docs/differences.md).
                               .decoupled = kind == "adamw" || kind == "fused_adam" || (kind == "cpu_adam" && h.flag("adamw_mode", true)),
                               .bias_correction = h.flag("bias_correction", true),
                               .step = p.step};
  const bool amsgrad = h.flag("amsgrad", false) && (kind == "adam" || kind == "adamw");
  kernels::adam(p.value.mutable_data_ptr<float>(), gradient.const_data_ptr<float>(), p.first.mutable_data_ptr<float>(),
                p.second.mutable_data_ptr<float>(), {}, static_cast<size_t>(p.value.numel()), step,
                amsgrad ? p.third.mutable_data_ptr<float>() : nullptr);
}

void lamb_step(const Hyper& h, double lr, Parameter& p, const at::Tensor& gradient) {
  const kernels::LambStep step{.lr = lr,
                               .beta1 = h.beta(0, 0.9),
                               .beta2 = h.beta(1, 0.999),
                               .eps = h.number("eps", 1e-8),
                               .weight_decay = h.number("weight_decay", 0.0),
                               .eps_inside_sqrt = h.flag("eps_inside_sqrt", false),
                               .bias_correction = h.flag("bias_correction", true),
                               .min_trust = h.number("min_coeff", 0.01),
                               .max_trust = h.number("max_coeff", 10.0),
                               .step = p.step};
  auto* value = p.value.mutable_data_ptr<float>();
  auto* first = p.first.mutable_data_ptr<float>();
  auto* second = p.second.mutable_data_ptr<float>();
  const auto n = static_cast<size_t>(p.value.numel());
  p.trust = kernels::lamb_trust(kernels::lamb_moments(value, gradient.const_data_ptr<float>(), first, second, n, step), step);
  kernels::lamb_apply(value, first, second, {}, n, step, p.trust);
}

// One parameter is one run of one rank.
void muon_step(const Hyper& h, double lr, Parameter& p, const at::Tensor& gradient) {
  optim::RunLayout run{p.value.numel(), {{0, p.value.numel()}}, 0, {{"p", p.value.sizes().vec(), p.value.numel(), 0}}, true};
  optim::FlatMuon muon({run}, at::kCPU, h.number("momentum", 0.95));
  muon.states().get(0, 0) = p.first.view(-1);
  optim::RunUpdate update;
  update.master = p.value.view(-1);
  update.gradient = gradient.clone().view(-1);
  update.group = {.lr = lr, .weight_decay = h.number("weight_decay", 0.0)};
  update.step = p.step;
  muon.direct(update, [](const at::Tensor& own) { return own.clone(); });
  muon.update(update);
}

double default_lr(const std::string& kind) { return kind == "cpu_adagrad" ? 1e-2 : kind == "muon" ? 0.02 : 1e-3; }

void take_step(const std::string& kind, const Hyper& h, double lr, Parameter& p, const at::Tensor& gradient) {
  auto* value = p.value.mutable_data_ptr<float>();
  auto* first = p.first.mutable_data_ptr<float>();
  const auto* g = gradient.const_data_ptr<float>();
  const auto n = static_cast<size_t>(p.value.numel());
  if (kind == "sgd") {
    kernels::sgd(value, g, first, {}, n,
                 {lr, h.number("momentum", 0), h.number("dampening", 0), h.number("weight_decay", 0), h.flag("nesterov", false), p.step});
  } else if (kind == "cpu_lion") {
    kernels::lion(value, g, first, {}, n, {lr, h.beta(0, 0.9), h.beta(1, 0.999), h.number("weight_decay", 0)});
  } else if (kind == "cpu_adagrad") {
    kernels::adagrad(value, g, first, {}, n,
                     {.lr = lr, .eps = h.number("eps", 1e-10), .weight_decay = h.number("weight_decay", 0), .raw_numerator = true});
  } else if (kind == "lamb") {
    lamb_step(h, lr, p, gradient);
  } else if (kind == "muon") {
    muon_step(h, lr, p, gradient);
  } else {
    adam_step(kind, h, lr, p, gradient);
  }
}

std::string compare(const std::string& what, const at::Tensor& got, const at::Tensor& expected, double relative, double absolute) {
  const auto wanted = expected.to(at::kDouble).contiguous(), have = got.to(at::kDouble).contiguous();
  if (wanted.numel() != have.numel()) return what + ": got another size";
  for (int64_t i = 0; i < wanted.numel(); ++i) {
    const double a = have.const_data_ptr<double>()[i], b = wanted.const_data_ptr<double>()[i];
    if (!within(a, b, relative, absolute))
      return difference(what + " element " + std::to_string(i), a, b, absolute + relative * std::abs(b));
  }
  return "";
}

// What this version lacks to run the case; "" when nothing.
std::string missing(const std::string& kind, const Hyper& h) {
  if (kind.starts_with("onebit")) return "1-bit optimizers";
  if (!h.flag("fp32_optimizer_states", true)) return "16-bit optimizer states";
  return "";
}

bool refused_by_configuration(const std::string& key) {
  const auto checked =
      check_config("{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"Adam\", \"params\": {\"" + key + "\": true}}}", 1);
  for (const auto& issue : checked.issues) {
    if (issue.path == "optimizer.params." + key) return true;
  }
  return false;
}

bool has_narrow_states(const Json& item, const Tensors& tensors) {
  const std::string prefix = item.at("id").get<std::string>() + "/exp_avg";
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with(prefix)) return tensor.scalar_type() != at::kFloat;
  }
  return false;
}

// Whether some parameter has not moved in a recorded step, but for its decay, although its gradient was not zero.
bool lion_left_out_the_sign(const Json& item, const Tensors& tensors) {
  const Hyper h{item.at("hyper"), true};
  const std::string set = "in/" + item.at("inputs").get<std::string>(), id = item.at("id");
  const bool master = item.contains("master_of");
  const auto type = type_of(master ? item["master_of"].get<std::string>() : item.at("dtype").get<std::string>());
  for (const auto& recorded : item.at("record")) {
    const auto step = recorded.get<int64_t>();
    for (size_t i = 0; tensors.count(set + "/p" + std::to_string(i)); ++i) {
      const std::string own = id + (master ? "/m" : "/p") + std::to_string(i) + ".";
      const auto before = tensors.find(step == 1 ? set + "/p" + std::to_string(i) : own + std::to_string(step - 1));
      const auto after = tensors.find(own + std::to_string(step));
      if (before == tensors.end() || after == tensors.end()) continue;
      const auto decayed =
          rounded(before->second, step == 1 ? type : at::kFloat).mul(1 - h.number("lr", 1e-3) * h.number("weight_decay", 0));
      const auto still = after->second.to(at::kFloat).sub(decayed).abs().le(0.1 * h.number("lr", 1e-3));
      const auto pushed = rounded(tensors.at(set + "/g" + std::to_string(step) + "." + std::to_string(i)), type).ne(0);
      if (still.logical_and(pushed).any().item().toBool()) return true;
    }
  }
  return false;
}

class Replay {
 public:
  Replay(const Json& item, Tensors tensors) : item_(item), tensors_(std::move(tensors)), id_(item.at("id")), kind_(item.at("optimizer")) {
    hyper_ = {item.at("hyper"), kind_.starts_with("cpu_") || kind_.starts_with("fused_")};
    const std::string set = item.at("inputs");
    const bool master = item.contains("master_of");
    narrow_ = type_of(master ? item["master_of"].get<std::string>() : item.at("dtype").get<std::string>());
    keeps_narrow_ = !master;
    for (size_t i = 0; tensors_.count("in/" + set + "/p" + std::to_string(i)); ++i) {
      const auto value = rounded(tensors_.at("in/" + set + "/p" + std::to_string(i)), narrow_);
      parameters_.push_back({value, value.mul(0), value.mul(0), value.mul(0)});
    }
  }

  // "" when everything recorded agrees. Leaves parameters out where `states_only`.
  std::string run(bool states_only = false) {
    states_only_ = states_only;
    for (int64_t step = 1; step <= item_.at("steps").get<int64_t>(); ++step) {
      take_steps(step);
      for (const auto& recorded : item_.at("record")) {
        if (recorded.get<int64_t>() != step) continue;
        const std::string text = compare_step(step);
        if (!text.empty()) return text;
      }
    }
    return "";
  }

 private:
  bool has_gradient(int64_t step, size_t i) const {
    if (!item_.contains("no_gradient")) return true;
    const Json without = item_["no_gradient"].value(std::to_string(step), Json::array());
    return std::find(without.begin(), without.end(), Json(i)) == without.end();
  }

  void take_steps(int64_t step) {
    std::vector<size_t> chosen;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (has_gradient(step, i)) chosen.push_back(i);
    }
    // The fused optimizer counts at the last parameter of a step and lends that count to the others.
    if (kind_ == "fused_adam" && !chosen.empty()) {
      const int64_t count = ++parameters_[chosen.back()].counted;
      for (const size_t i : chosen) parameters_[i].step = count;
    } else {
      for (const size_t i : chosen) ++parameters_[i].step;
    }
    for (const size_t i : chosen) update(step, i);
  }

  void update(int64_t step, size_t i) {
    Parameter& p = parameters_[i];
    const std::string name = "in/" + item_.at("inputs").get<std::string>() + "/g" + std::to_string(step) + "." + std::to_string(i);
    const auto gradient = rounded(tensors_.at(name), narrow_);
    if (kind_ == "muon_aux_adam") {
      // The first parameters by Muon's rule, the rest by Adam's with Muon's defaults.
      const bool matrix = i < hyper_.json.at("muon_params").get<size_t>();
      Hyper own{hyper_.json.at(matrix ? "muon" : "adam")};
      if (!matrix && !own.json.contains("betas")) own.json["betas"] = {0.9, 0.95};
      if (!matrix && !own.json.contains("eps")) own.json["eps"] = 1e-10;
      if (!matrix && !own.json.contains("weight_decay")) own.json["weight_decay"] = 0.0;
      const std::string rule = matrix ? "muon" : "adamw";
      take_step(rule, own, own.number("lr", matrix ? 0.02 : 3e-4), p, gradient);
      return;
    }
    const double lr = item_.contains("lr_per_step") ? item_["lr_per_step"][static_cast<size_t>(step - 1)].get<double>()
                                                    : hyper_.number("lr", default_lr(kind_));
    take_step(kind_, hyper_, lr, p, gradient);
    if (keeps_narrow_) p.value = rounded(p.value, narrow_);
  }

  std::string compare_step(int64_t step) const {
    const double relative = item_.at("rtol"), absolute = item_.at("atol"), state = item_.at("state_atol");
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Parameter& p = parameters_[i];
      const std::string end = std::to_string(i) + "." + std::to_string(step);
      const auto check = [&](const char* kind, const at::Tensor& got, double r, double a) -> std::string {
        const auto found = tensors_.find(id_ + "/" + kind + end);
        return found == tensors_.end() ? "" : compare(kind + end, got, found->second, r, a);
      };
      const bool muon = kind_.starts_with("muon");
      const bool one_state = kind_ == "cpu_adagrad";
      for (const std::string& text :
           {states_only_ ? std::string() : check("p", rounded(p.value, narrow_), keeps_narrow_ ? relative : 0.01, absolute),
            states_only_ ? std::string() : check("m", p.value, relative, absolute),
            kind_ == "cpu_adagrad" ? std::string() : check("exp_avg", p.first, 1e-6, state),
            check("momentum_buffer", p.first, muon ? 2e-2 : 1e-6, state), check("max_exp_avg_sq", p.third, 1e-6, state),
            kind_ == "cpu_lion" ? std::string() : check("exp_avg_sq", one_state ? p.first : p.second, 1e-6, state)}) {
        if (!text.empty()) return text;
      }
      if (item_.contains("trust") && item_["trust"].contains(std::to_string(step))) {
        const double wanted = item_["trust"][std::to_string(step)][i];
        if (!within(p.trust, wanted, 1e-5, 0)) return difference("trust" + end, p.trust, wanted, 1e-5);
      }
    }
    return "";
  }

  const Json& item_;
  Tensors tensors_;
  std::string id_, kind_;
  Hyper hyper_;
  at::ScalarType narrow_ = at::kFloat;
  bool states_only_ = false;
  bool keeps_narrow_ = true;  // the optimizer works on rounded values; else on a master
  std::vector<Parameter> parameters_;
};

}  // namespace

Outcome run_optimizer_case(const UnitFile& file, const Json& item) {
  const std::string kind = item.at("optimizer");
  const Hyper hyper{item.at("hyper")};
  const std::string feature = missing(kind, hyper);
  if (!feature.empty()) return Outcome::skip(feature);
  if (better_action(item) == "reject" && item["better"].contains("key")) {
    const std::string key = item["better"]["key"];
    return refused_by_configuration(key) ? Outcome::ok("better") : Outcome::fail(key + ": accepted, expected an error");
  }
  if (item.contains("error") && kind.starts_with("muon")) {
    const auto tensors = load_safetensors((file.path.parent_path() / file.data.at("tensors").get<std::string>()).string());
    try {
      Replay(item, Tensors(tensors.begin(), tensors.end())).run();
    } catch (const Error& error) {
      return error.code() == ErrorCode::kUsage ? Outcome::ok() : Outcome::fail(error.what());
    }
  }
  if (item.contains("error")) return Outcome::fail("got no error, expected one");
  const auto loaded = load_safetensors((file.path.parent_path() / file.data.at("tensors").get<std::string>()).string());
  const Tensors tensors(loaded.begin(), loaded.end());
  if (has_narrow_states(item, tensors)) return Outcome::skip("16-bit optimizer states");
  const std::string text = Replay(item, tensors).run();
  if (text.empty()) return Outcome::ok(item.contains("better") ? "expect" : "");
  // Recorded with the vectorised kernel of 0.18.4, which leaves out the sign (README.md, rule 9): its moments are right, its parameters are not.
  if (kind == "cpu_lion" && Replay(item, tensors).run(/*states_only=*/true).empty() && lion_left_out_the_sign(item, tensors)) {
    return Outcome::ok("moments as expected, parameters by the formula: the recorded ones lack the sign's step");
  }
  return Outcome::fail(text);
}

}  // namespace deepspeed::conformance
