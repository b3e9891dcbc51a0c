// A file of unit data, and what its cases have in common.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "conformance/json_file.h"
#include "conformance/report.h"

namespace deepspeed::conformance {

struct UnitFile {
  std::filesystem::path path;
  Json data;

  std::string stem() const { return path.stem().string(); }
};

// What the right value is called where the reference has another: better.action, or "".
std::string better_action(const Json& item);
// A number; non-finite ones are texts.
double number_of(const Json& value);
// |got - expected| <= absolute + relative * |expected|; non-finite values must be the same.
bool within(double got, double expected, double relative, double absolute);
std::string difference(const std::string& what, double got, double expected, double tolerance);

// `observed` is "" when what came out agrees with case.expect, else the first difference; `right` likewise for case.better, empty when it asks for
// nothing that can be compared.
Outcome judge(const std::string& observed, const std::optional<std::string>& right);

// One case of each family.
Outcome run_loss_scale_case(const UnitFile& file, const Json& item);
Outcome run_schedule_case(const UnitFile& file, const Json& item);
Outcome run_optimizer_case(const UnitFile& file, const Json& item);
Outcome run_elasticity_case(const UnitFile& file, const Json& item);
Outcome run_zero_math_case(const UnitFile& file, const Json& item);
Outcome run_config_case(const UnitFile& file, const Json& item);

}  // namespace deepspeed::conformance
