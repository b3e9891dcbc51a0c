#include <cmath>
#include <sstream>

#include "conformance/families.h"
#include "conformance/unit_file.h"

namespace deepspeed::conformance {
namespace {

struct Family {
  const char* name;
  Outcome (*run)(const UnitFile& file, const Json& item);
};

constexpr Family kFamilies[] = {
    {"config", run_config_case},        {"elasticity", run_elasticity_case}, {"loss_scale", run_loss_scale_case},
    {"optimizers", run_optimizer_case}, {"schedules", run_schedule_case},    {"zero_math", run_zero_math_case},
};

}  // namespace

std::string better_action(const Json& item) {
  const auto better = item.find("better");
  return better == item.end() || !better->is_object() ? "" : better->value("action", "");
}

double number_of(const Json& value) {
  if (value == "nan") return NAN;
  if (value == "inf") return INFINITY;
  if (value == "-inf") return -INFINITY;
  return value.get<double>();
}

bool within(double got, double expected, double relative, double absolute) {
  if (std::isnan(expected) || std::isinf(expected)) return std::isnan(expected) ? std::isnan(got) : got == expected;
  return std::abs(got - expected) <= absolute + relative * std::abs(expected);
}

std::string difference(const std::string& what, double got, double expected, double tolerance) {
  std::ostringstream text;
  text.precision(10);
  text << what << ": got " << got << ", expected " << expected << ", tolerance " << tolerance;
  return text.str();
}

Outcome judge(const std::string& observed, const std::optional<std::string>& right) {
  if (!right) return observed.empty() ? Outcome::ok() : Outcome::fail(observed);
  if (observed.empty() && right->empty()) return Outcome::ok("both expect and better");
  if (observed.empty()) return Outcome::ok("expect");
  if (right->empty()) return Outcome::ok("better");
  return Outcome::fail("neither expect (" + observed + ") nor better (" + *right + ")");
}

std::vector<UnitCase> run_unit_file(const std::string& family, const std::filesystem::path& path, const std::string& filter) {
  std::vector<UnitCase> results;
  const UnitFile file{path, read_json(path)};
  if (!file.data.is_object() || !file.data.contains("cases")) return results;
  const Family* known = nullptr;
  for (const auto& entry : kFamilies) {
    if (family == entry.name) known = &entry;
  }
  for (const auto& item : file.data["cases"]) {
    const std::string name = family + "/" + file.stem() + "/" + item.at("id").get<std::string>();
    if (!filter.empty() && name.find(filter) == std::string::npos) continue;
    Outcome outcome = Outcome::skip("conformance family " + family);
    if (known) {
      try {
        outcome = known->run(file, item);
      } catch (const std::exception& error) {
        outcome = Outcome::fail(error.what());
      }
    }
    results.push_back({name, std::move(outcome)});
  }
  return results;
}

}  // namespace deepspeed::conformance
