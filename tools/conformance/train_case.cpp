#include "conformance/train_case.h"

#include <cmath>
#include <set>
#include <sstream>

#include "conformance/families.h"
#include "deepspeed/config.h"
#include "deepspeed/error.h"
#include "deepspeed/safetensors.h"

namespace deepspeed::conformance {
namespace {

std::string difference(const std::string& what, double got, double expected, double tolerance) {
  std::ostringstream text;
  text.precision(10);
  text << what << ": got " << got << ", expected " << expected << ", tolerance " << tolerance;
  return text.str();
}

bool close(double got, double expected, double tolerance) { return std::abs(got - expected) <= tolerance; }

// Per group: a list of betas, one number, or null.
std::string compare_momentum(const std::string& where, const std::vector<std::vector<double>>& got, const Json& expected) {
  if (got.size() != expected.size())
    return difference(where + "groups with momentum", static_cast<double>(got.size()), static_cast<double>(expected.size()), 0);
  for (size_t g = 0; g < expected.size(); ++g) {
    const Json wanted = expected[g].is_array() ? expected[g] : expected[g].is_null() ? Json::array() : Json::array({expected[g]});
    if (got[g].size() != wanted.size())
      return difference(where + "values of momentum", static_cast<double>(got[g].size()), static_cast<double>(wanted.size()), 0);
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!close(got[g][i], wanted[i], 1e-12 * std::abs(wanted[i].get<double>())))
        return difference(where + "momentum", got[g][i], wanted[i], 0);
    }
  }
  return "";
}

std::string compare_step(const std::string& where, const StepResult& got, const Json& expected, const Tolerance& tolerance) {
  const auto& losses = expected.at("losses");
  for (size_t rank = 0; rank < losses.size(); ++rank) {
    for (size_t micro = 0; micro < losses[rank].size(); ++micro) {
      if (!close(got.losses.at(rank).at(micro), losses[rank][micro], tolerance.loss_abs)) {
        return difference(where + "loss of rank " + std::to_string(rank), got.losses[rank][micro], losses[rank][micro], tolerance.loss_abs);
      }
    }
  }
  if (!close(got.mean_loss, expected.at("mean_loss"), tolerance.loss_abs)) {
    return difference(where + "mean loss", got.mean_loss, expected["mean_loss"], tolerance.loss_abs);
  }
  if (got.skipped != expected.at("skipped").get<bool>())
    return difference(where + "skipped", got.skipped, expected["skipped"].get<bool>(), 0);
  if (got.loss_scale != expected.at("loss_scale").get<double>())
    return difference(where + "loss scale", got.loss_scale, expected["loss_scale"], 0);
  if (expected.at("grad_norm").is_number()) {
    const double norm = expected["grad_norm"];
    if (!got.grad_norm || !close(*got.grad_norm, norm, tolerance.norm_rel * norm)) {
      return difference(where + "grad norm", got.grad_norm.value_or(NAN), norm, tolerance.norm_rel * norm);
    }
  }
  const auto& rates = expected.at("lr");
  for (size_t g = 0; g < rates.size(); ++g) {
    if (g >= got.lr.size() || !close(got.lr[g], rates[g], 1e-12 * std::abs(rates[g].get<double>()))) {
      return difference(where + "lr", g < got.lr.size() ? got.lr[g] : NAN, rates[g], 1e-12 * std::abs(rates[g].get<double>()));
    }
  }
  // Steps of resumed runs were recorded without it.
  return expected.contains("momentum") ? compare_momentum(where, got.momentum, expected["momentum"]) : "";
}

// The features that keep a case from running, by name; "" when there are none.
std::string missing_features(const Json& settings, const std::string& config) {
  std::set<std::string> features;
  if (settings.contains("activation_checkpointing") && !settings["activation_checkpointing"].is_null())
    features.insert("activation checkpointing");
  if (settings.value("sequence_parallel", 1) > 1) features.insert("sequence parallelism");
  const auto checked = check_config(config, settings.at("world_size").get<int64_t>());
  bool only_missing = true;
  for (const auto& issue : checked.issues) {
    if (issue.kind == ConfigIssue::Kind::kNotBuilt) {
      features.insert(issue.feature);
    } else {
      only_missing = false;
    }
  }
  if (!only_missing && features.empty()) return "";
  std::string text;
  for (const auto& feature : features) text += (text.empty() ? "" : ", ") + feature;
  return text;
}

std::string compare_all(const TrainResult& got, const Json& steps, const std::filesystem::path& weights, bool has_weights,
                        const Tolerance& tolerance) {
  std::string text = compare_steps(got, steps, tolerance);
  if (text.empty() && has_weights) text = compare_weights(got, weights, tolerance);
  return text;
}

}  // namespace

Tolerance tolerance_of(const Json& json) {
  return {json.at("loss_abs"), json.at("norm_rel"), json.at("weights_max_abs"), json.at("weights_rms")};
}

std::string compare_steps(const TrainResult& got, const Json& expected_steps, const Tolerance& tolerance) {
  if (got.steps.size() != expected_steps.size())
    return difference("steps", static_cast<double>(got.steps.size()), static_cast<double>(expected_steps.size()), 0);
  for (size_t step = 0; step < got.steps.size(); ++step) {
    const auto text = compare_step("step " + std::to_string(step) + " ", got.steps[step], expected_steps[step], tolerance);
    if (!text.empty()) return text;
  }
  return "";
}

std::string compare_weights(const TrainResult& got, const std::filesystem::path& file, const Tolerance& tolerance) {
  double squares = 0, largest = 0;
  std::string where;
  int64_t elements = 0;
  for (const auto& [name, expected] : load_safetensors(file.string())) {
    const auto found = got.weights.find(name);
    if (found == got.weights.end()) return "weights: got none named " + name;
    if (found->second.sizes() != expected.sizes()) return "weights: got another shape of " + name;
    const auto delta = found->second.sub(expected).to(at::kDouble);
    if (delta.numel() == 0) continue;
    squares += delta.square().sum().item().toDouble();
    const double furthest = delta.abs().max().item().toDouble();
    if (furthest > largest) where = name;
    largest = std::max(largest, furthest);
    elements += delta.numel();
  }
  const double rms = std::sqrt(squares / static_cast<double>(std::max<int64_t>(elements, 1)));
  if (!(rms <= tolerance.weights_rms)) return difference("weights, root mean square", rms, 0, tolerance.weights_rms);
  if (!(largest <= tolerance.weights_max_abs))
    return difference("weights, largest difference (" + where + ")", largest, 0, tolerance.weights_max_abs);
  return "";
}

Outcome run_train_case(const std::filesystem::path& root, const std::filesystem::path& directory) {
  const Json settings = read_json(directory / "case.json");
  const std::string missing = missing_features(settings, read_text(directory / "ds_config.json"));
  if (!missing.empty()) return Outcome::skip(missing);
  const TrainResult got = run_training(root, directory, settings);

  const Json& reference = settings.at("final_weights");
  const bool has_weights = reference.is_string();
  const auto folder = has_weights ? root / "train" / reference.get<std::string>() : directory;
  const std::string expected_text = compare_all(got, read_json(directory / "expected.json").at("steps"), folder / "final.safetensors",
                                                has_weights, tolerance_of(settings.at("tolerance")));
  if (!std::filesystem::exists(directory / "right.json")) return expected_text.empty() ? Outcome::ok() : Outcome::fail(expected_text);
  const Json right = read_json(directory / "right.json");
  const std::string right_text =
      compare_all(got, right.at("steps"), folder / "right_final.safetensors", has_weights, tolerance_of(right.at("tolerance")));
  if (expected_text.empty() && right_text.empty()) return Outcome::ok("both expected and right");
  if (right_text.empty()) return Outcome::ok("right");
  if (expected_text.empty()) return Outcome::ok("expected");
  return Outcome::fail("neither expected (" + expected_text + ") nor right (" + right_text + ")");
}

}  // namespace deepspeed::conformance
