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

// An optimizer that is built: its parameters beside lr and weight_decay, and the defaults that are its own.
struct Built {
  std::string_view name;
  double lr, eps;
  double beta1, beta2;
  std::string_view parameters;  // separated by spaces
  double momentum = 0.0;
};

constexpr std::string_view kTorchSwitches = "maximize foreach fused capturable differentiable";
constexpr std::string_view kAdamParameters = "betas eps bias_correction adam_w_mode torch_adam amsgrad fp32_optimizer_states set_grad_none";
constexpr Built kBuilt[] = {
    {"Adam", 1e-3, 1e-8, 0.9, 0.999, kAdamParameters},
    {"AdamW", 1e-3, 1e-8, 0.9, 0.999, kAdamParameters},
    {"Lamb", 1e-3, 1e-8, 0.9, 0.999, "betas eps bias_correction eps_inside_sqrt min_coeff max_coeff amsgrad"},
    {"Adagrad", 1e-2, 1e-10, 0.9, 0.999, "eps lr_decay initial_accumulator_value"},
    {"Lion", 1e-3, 1e-8, 0.9, 0.999, "betas"},
    {"Muon", 0.02, 1e-10, 0.9, 0.95, "muon_lr adam_lr momentum betas eps ns_method", 0.95},
};
// Torch's name, exactly as written.
constexpr Built kSgd = {"SGD", 1e-3, 1e-8, 0.9, 0.999, "momentum dampening nesterov"};
constexpr std::string_view kAllowed = "Adam, AdamW, Lamb, Adagrad, Lion, Muon or SGD";

// DeepSpeed's own names, in any case.
constexpr std::string_view kDeepSpeed[] = {"OneBitAdam", "ZeroOneAdam", "OneBitLamb", "MuAdam", "MuAdamW", "MuSGD"};
// torch.optim, exactly as written.
constexpr std::string_view kTorch[] = {"Adadelta", "Adafactor", "Adamax",  "ASGD",  "LBFGS",
                                       "NAdam",    "RAdam",     "RMSprop", "Rprop", "SparseAdam"};

std::string lower(std::string_view word) {
  std::string result(word);
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

const Built* find_built(std::string_view type) {
  for (const auto& entry : kBuilt) {
    if (lower(entry.name) == lower(type)) return &entry;
  }
  return type == kSgd.name ? &kSgd : nullptr;
}

void judge_type(Settings& settings, const std::string& type) {
  std::string_view known;
  for (const auto name : kDeepSpeed) {
    if (lower(name) == lower(type)) known = name;
  }
  if (std::find(std::begin(kTorch), std::end(kTorch), type) != std::end(kTorch)) known = type;
  if (!known.empty()) {
    settings.issues.push_back({Kind::kNotBuilt, "optimizer.type",
                               str("got \"", type, "\"; this version has no ", known, ", allowed ", kAllowed), str("optimizer ", known)});
    return;
  }
  std::vector<std::string_view> names = {kSgd.name};
  for (const auto& entry : kBuilt) names.push_back(entry.name);
  names.insert(names.end(), std::begin(kDeepSpeed), std::end(kDeepSpeed));
  names.insert(names.end(), std::begin(kTorch), std::end(kTorch));
  std::vector<std::string> lower_names;
  for (const auto name : names) lower_names.push_back(lower(name));
  std::string message = str("got ", shown(type), ", allowed ", kAllowed);
  const std::string near = base::nearest(lower(type), lower_names);
  for (size_t i = 0; i < names.size(); ++i) {
    if (!near.empty() && lower_names[i] == near) message += str("; did you mean \"", names[i], "\"?");
  }
  settings.refuse(Kind::kBadValue, "optimizer.type", message);
}

bool has_word(std::string_view words, std::string_view word) { return str(" ", words, " ").find(str(" ", word, " ")) != std::string::npos; }

void check_parameters(Settings& settings, const Built& optimizer) {
  const std::string prefix = "optimizer.params.";
  for (const auto& [path, value] : settings.given) {
    if (!path.starts_with(prefix)) continue;
    const std::string name = path.substr(prefix.size());
    if (name == "lr" || name == "weight_decay" || has_word(optimizer.parameters, name) || has_word(kTorchSwitches, name)) continue;
    std::string list = "lr, weight_decay";
    for (const char c : str(" ", optimizer.parameters)) list += c == ' ' ? std::string(", ") : std::string(1, c);
    settings.refuse(Kind::kUnknownKey, path, str("got a parameter of other optimizers, allowed for ", optimizer.name, " ", list));
  }
}

void check_combinations(Settings& settings, const Built& optimizer) {
  const auto number = [&](const char* name) { return settings.number(str("optimizer.params.", name)); };
  if (optimizer.name == "AdamW" && !settings.flag("optimizer.params.adam_w_mode")) {
    settings.notes.push_back("optimizer.params.adam_w_mode: false changes nothing here: AdamW always decouples weight decay");
  }
  const bool adam = optimizer.name == "Adam" || optimizer.name == "AdamW";
  const bool torchs = (adam && settings.flag("optimizer.params.torch_adam")) || optimizer.name == "SGD" || optimizer.name == "Adagrad";
  if (settings.flag("optimizer.params.amsgrad") && !(adam && torchs)) {
    settings.refuse(Kind::kConflict, "optimizer.params.amsgrad",
                    adam ? "got true, allowed together with torch_adam true (torch's rule; DeepSpeed's own Adam has none)"
                         : str("got true, allowed for Adam and AdamW with torch_adam true, not ", optimizer.name));
  }
  if (settings.flag("optimizer.params.maximize") && !torchs) {
    settings.refuse(
        Kind::kConflict, "optimizer.params.maximize",
        str("got true, allowed for torch's optimizers: SGD, Adagrad, and Adam or AdamW with torch_adam true, here ", optimizer.name));
  }
  if (optimizer.name == "SGD" && settings.flag("optimizer.params.nesterov") && (number("momentum") == 0 || number("dampening") != 0)) {
    settings.refuse(Kind::kConflict, "optimizer.params.nesterov", "got true, allowed with momentum above 0 and dampening 0 only");
  }
  if (optimizer.name == "Lamb" && number("min_coeff") > number("max_coeff")) {
    settings.refuse(Kind::kConflict, "optimizer.params.min_coeff",
                    str("got ", shown(settings.get("optimizer.params.min_coeff")), ", allowed at most max_coeff, here ",
                        shown(settings.get("optimizer.params.max_coeff"))));
  }
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
    if (settings.has("optimizer.type")) settings.refuse(Kind::kBadValue, "optimizer.type", str("got \"\", allowed ", kAllowed));
    if (settings.has("optimizer.params") && !settings.spoiled("optimizer.type")) {
      settings.notes.push_back("optimizer: the section names no type, so there is no optimizer and params have no effect");
    }
    return;
  }
  const Built* optimizer = find_built(type);
  if (!optimizer) return judge_type(settings, type);
  check_parameters(settings, *optimizer);
  check_combinations(settings, *optimizer);
}

Config::Optimizer make_optimizer(const Settings& settings) {
  Config::Optimizer optimizer;
  if (!settings.has("optimizer.type")) return optimizer;
  const std::string type = settings.get("optimizer.type").get<std::string>();
  const Built* built = find_built(type);
  if (!built) return optimizer;
  optimizer.type = built == &kSgd ? type : lower(type);
  const auto path = [](const char* name) { return str("optimizer.params.", name); };
  optimizer.lr = settings.has(path("lr")) ? settings.number(path("lr")) : built->lr;
  optimizer.eps = settings.has(path("eps")) ? settings.number(path("eps")) : built->eps;
  optimizer.beta1 = built->beta1;
  optimizer.beta2 = built->beta2;
  if (settings.has(path("betas"))) {
    const auto betas = settings.get(path("betas"));
    optimizer.beta1 = betas.at(0).get<double>();
    optimizer.beta2 = betas.at(1).get<double>();
  }
  optimizer.bias_correction = settings.flag(path("bias_correction"));
  optimizer.torch_adam = settings.flag(path("torch_adam"));
  optimizer.adam_w_mode = optimizer.type == "adamw" || settings.flag(path("adam_w_mode"));
  optimizer.weight_decay = settings.number(path("weight_decay"));
  optimizer.amsgrad = settings.flag(path("amsgrad"));
  optimizer.maximize = settings.flag(path("maximize"));
  optimizer.momentum = settings.has(path("momentum")) ? settings.number(path("momentum")) : built->momentum;
  optimizer.dampening = settings.number(path("dampening"));
  optimizer.nesterov = settings.flag(path("nesterov"));
  optimizer.lr_decay = settings.number(path("lr_decay"));
  optimizer.initial_accumulator_value = settings.number(path("initial_accumulator_value"));
  optimizer.min_coeff = settings.number(path("min_coeff"));
  optimizer.max_coeff = settings.number(path("max_coeff"));
  optimizer.eps_inside_sqrt = settings.flag(path("eps_inside_sqrt"));
  if (optimizer.type == "muon") {
    if (settings.has(path("muon_lr"))) optimizer.lr = settings.number(path("muon_lr"));
    for (const char* name : {"lr", "adam_lr"}) {
      if (settings.has(path(name))) optimizer.adam_lr = settings.number(path(name));
    }
  }
  // torch's AdamW is the one class of the four that decays without being asked.
  constexpr double kTorchAdamWDecay = 0.01;
  if (optimizer.torch_adam && optimizer.adam_w_mode && !settings.has("optimizer.params.weight_decay"))
    optimizer.weight_decay = kTorchAdamWDecay;
  return optimizer;
}

nlohmann::json optimizer_values(const Config::Optimizer& o) {
  const Built* built = find_built(o.type);
  if (!built) return nlohmann::json::object();
  nlohmann::json all = {{"betas", {o.beta1, o.beta2}},
                        {"eps", o.eps},
                        {"bias_correction", o.bias_correction},
                        {"adam_w_mode", o.adam_w_mode},
                        {"torch_adam", o.torch_adam},
                        {"amsgrad", o.amsgrad},
                        {"momentum", o.momentum},
                        {"dampening", o.dampening},
                        {"nesterov", o.nesterov},
                        {"lr_decay", o.lr_decay},
                        {"initial_accumulator_value", o.initial_accumulator_value},
                        {"min_coeff", o.min_coeff},
                        {"max_coeff", o.max_coeff},
                        {"eps_inside_sqrt", o.eps_inside_sqrt},
                        {"muon_lr", o.lr},
                        {"adam_lr", o.adam_lr}};
  nlohmann::json values = {{"weight_decay", o.weight_decay}, {"maximize", o.maximize}};
  if (!has_word(built->parameters, "muon_lr")) values["lr"] = o.lr;
  for (const auto& [name, value] : all.items()) {
    if (has_word(built->parameters, name)) values[name] = value;
  }
  return values;
}

}  // namespace deepspeed::config
