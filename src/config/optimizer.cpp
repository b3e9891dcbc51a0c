#include "config/optimizer.h"

#include <algorithm>
#include <cctype>

#include "base/text.h"
#include "config/schema.h"
#include "config/value.h"

namespace deepspeed::config {

namespace {

using base::str;
using Kind = ConfigIssue::Kind;

constexpr std::string_view kBuilt[] = {"Adam", "AdamW"};
// DeepSpeed's own names, in any case.
constexpr std::string_view kDeepSpeed[] = {"Lamb", "OneBitAdam", "ZeroOneAdam", "OneBitLamb", "Adagrad",
                                           "Lion", "Muon",       "MuAdam",      "MuAdamW",    "MuSGD"};
// torch.optim, exactly as written.
constexpr std::string_view kTorch[] = {"Adadelta", "Adafactor", "Adamax", "ASGD", "LBFGS",     "NAdam",
                                       "RAdam",    "RMSprop",   "Rprop",  "SGD",  "SparseAdam"};

std::string lower(std::string_view word) {
  std::string result(word);
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

template <size_t N>
std::string_view find_any_case(const std::string_view (&names)[N], std::string_view word) {
  for (const auto name : names) {
    if (lower(name) == lower(word)) return name;
  }
  return {};
}

void judge_type(Settings& settings, const std::string& type) {
  if (!find_any_case(kBuilt, type).empty()) return;
  std::string_view known = find_any_case(kDeepSpeed, type);
  if (known.empty() && std::find(std::begin(kTorch), std::end(kTorch), type) != std::end(kTorch)) known = type;
  if (!known.empty()) {
    settings.issues.push_back({Kind::kNotBuilt, "optimizer.type",
                               str("got \"", type, "\"; this version has no ", known, ", allowed Adam or AdamW"),
                               str("optimizer ", known)});
    return;
  }
  std::vector<std::string_view> names;
  for (const auto name : kBuilt) names.push_back(name);
  for (const auto name : kDeepSpeed) names.push_back(name);
  for (const auto name : kTorch) names.push_back(name);
  std::vector<std::string> lower_names;
  for (const auto name : names) lower_names.push_back(lower(name));
  std::string message = str("got ", shown(type), ", allowed Adam or AdamW");
  const std::string near = base::nearest(lower(type), lower_names);
  for (size_t i = 0; i < names.size(); ++i) {
    if (!near.empty() && lower_names[i] == near) message += str("; did you mean \"", names[i], "\"?");
  }
  settings.refuse(Kind::kBadValue, "optimizer.type", message);
}

void check_betas(Settings& settings) {
  const auto found = settings.given.find("optimizer.params.betas");
  if (found == settings.given.end()) return;
  const auto& betas = found->second;
  const bool good = betas.size() == 2 && std::all_of(betas.begin(), betas.end(), [](const auto& beta) { return beta >= 0 && beta < 1; });
  if (!good) {
    settings.refuse(Kind::kOutOfRange, "optimizer.params.betas",
                    str("got ", shown(betas), ", allowed two numbers, each at least 0 and below 1"));
  }
}

}  // namespace

void check_optimizer(Settings& settings) {
  // The generic "unknown key" would not say where clipping belongs.
  for (auto& issue : settings.issues) {
    if (issue.path != "optimizer.params.max_grad_norm") continue;
    issue.kind = Kind::kConflict;
    issue.message = "got a clipping norm inside the optimizer's parameters, allowed only as gradient_clipping at top level";
  }
  check_betas(settings);
  const std::string type = settings.has("optimizer.type") ? settings.get("optimizer.type").get<std::string>() : "";
  if (type.empty()) {
    if (settings.has("optimizer.type")) settings.refuse(Kind::kBadValue, "optimizer.type", "got \"\", allowed Adam or AdamW");
    if (settings.has("optimizer.params") && !settings.spoiled("optimizer.type")) {
      settings.notes.push_back("optimizer: the section names no type, so there is no optimizer and params have no effect");
    }
    return;
  }
  judge_type(settings, type);
  if (find_any_case(kBuilt, type).empty()) return;
  for (const auto& [path, value] : settings.given) {
    if (!path.starts_with("optimizer.params.") || find_key(path)->status != Status::kDetail) continue;
    settings.refuse(Kind::kUnknownKey, path,
                    str("got a parameter of other optimizers, allowed for ", type,
                        " lr, betas, eps, weight_decay, bias_correction, adam_w_mode, torch_adam"));
  }
  if (lower(type) == "adamw" && !settings.flag("optimizer.params.adam_w_mode")) {
    settings.notes.push_back("optimizer.params.adam_w_mode: false changes nothing here: AdamW always decouples weight decay");
  }
}

Config::Optimizer make_optimizer(const Settings& settings) {
  Config::Optimizer optimizer;
  if (!settings.has("optimizer.type")) return optimizer;
  optimizer.type = lower(settings.get("optimizer.type").get<std::string>());
  optimizer.lr = settings.number("optimizer.params.lr");
  const auto betas = settings.get("optimizer.params.betas");
  optimizer.beta1 = betas.at(0).get<double>();
  optimizer.beta2 = betas.at(1).get<double>();
  optimizer.eps = settings.number("optimizer.params.eps");
  optimizer.bias_correction = settings.flag("optimizer.params.bias_correction");
  optimizer.torch_adam = settings.flag("optimizer.params.torch_adam");
  optimizer.adam_w_mode = optimizer.type == "adamw" || settings.flag("optimizer.params.adam_w_mode");
  optimizer.weight_decay = settings.number("optimizer.params.weight_decay");
  // torch's AdamW is the one class of the four that decays without being asked.
  constexpr double kTorchAdamWDecay = 0.01;
  if (optimizer.torch_adam && optimizer.adam_w_mode && !settings.has("optimizer.params.weight_decay"))
    optimizer.weight_decay = kTorchAdamWDecay;
  return optimizer;
}

}  // namespace deepspeed::config
