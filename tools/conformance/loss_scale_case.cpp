// units/loss_scale: the loss scale after each step of a row of overflows.
#include <cfloat>
#include <cmath>
#include <optional>
#include <vector>

#include "conformance/unit_file.h"
#include "deepspeed/error.h"
#include "precision/loss_scaler.h"

namespace deepspeed::conformance {
namespace {

std::vector<double> expanded(const Json& runs) {
  std::vector<double> values;
  for (const auto& run : runs) values.insert(values.end(), run[1].get<size_t>(), number_of(run[0]));
  return values;
}

precision::LossScalerOptions options_of(const Json& item) {
  const Json config = item.value("config", Json::object());
  precision::LossScalerOptions options;
  const double fixed = config.value("loss_scale", 0.0);
  if (item.at("kind") == "static" || fixed != 0) {
    options.dynamic = false;
    options.initial = fixed;
    return options;
  }
  options.initial = std::ldexp(1.0, config.value("initial_scale_power", 16));
  options.window = config.value("loss_scale_window", int64_t{1000});
  options.minimum = config.value("min_loss_scale", 1.0);
  options.hysteresis = config.value("hysteresis", int64_t{2});
  options.consecutive_hysteresis = config.value("consecutive_hysteresis", false);
  options.raise_at_minimum = config.value("raise_error_at_min_scale", true);
  // The wrapper of stage 0 is the same rule without tolerance and error.
  if (item.at("kind") == "fp16_wrapper") {
    options.hysteresis = 1;
    options.raise_at_minimum = false;
  }
  return options;
}

struct Trace {
  bool constructed = false;
  double initial = 0;
  std::vector<double> scale, tolerance;
  bool failed = false;  // at step scale.size()
};

Trace run(const Json& item) {
  Trace trace;
  std::optional<precision::LossScaler> scaler;
  try {
    scaler.emplace(options_of(item));
  } catch (const Error&) {
    return trace;
  }
  trace.constructed = true;
  trace.initial = scaler->scale();
  for (const char flag : item.at("overflow").get<std::string>()) {
    try {
      scaler->update(flag == '1');
    } catch (const Error&) {
      trace.failed = true;
      break;
    }
    trace.scale.push_back(scaler->scale());
    trace.tolerance.push_back(static_cast<double>(scaler->tolerance_left()));
  }
  return trace;
}

std::string compare(const std::string& what, const std::vector<double>& got, const std::vector<double>& expected) {
  if (got.size() != expected.size())
    return difference(what + ", steps", static_cast<double>(got.size()), static_cast<double>(expected.size()), 0);
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] != expected[i]) return difference(what + " after step " + std::to_string(i), got[i], expected[i], 0);
  }
  return "";
}

std::string compare_expected(const Trace& got, const Json& item) {
  const Json& expect = item.at("expect");
  if (!got.constructed) return "options: refused, expected accepted";
  if (got.initial != number_of(expect.at("initial"))) return difference("first scale", got.initial, number_of(expect["initial"]), 0);
  const auto expected = expanded(expect.at("scale"));
  std::string text = compare("scale", got.scale, expected);
  if (text.empty() && expect.contains("tolerance_left")) text = compare("tolerance", got.tolerance, expanded(expect["tolerance_left"]));
  if (text.empty() && got.failed != expect.contains("error"))
    return got.failed ? "got an error, expected none" : "got no error, expected one";
  return text;
}

}  // namespace

Outcome run_loss_scale_case(const UnitFile&, const Json& item) {
  const Trace got = run(item);
  const std::string action = better_action(item);
  std::optional<std::string> right;
  if (action == "reject") {
    right = got.constructed ? "options: accepted, expected an error" : "";
  } else if (action == "cap") {
    std::vector<double> expected = expanded(item.at("expect").at("scale"));
    for (size_t i = 0; i < expected.size() && i < got.scale.size(); ++i) {
      if (expected[i] > FLT_MAX && got.scale[i] <= FLT_MAX) expected[i] = got.scale[i];
    }
    right = compare("scale", got.scale, expected);
  }
  return judge(compare_expected(got, item), right);
}

}  // namespace deepspeed::conformance
