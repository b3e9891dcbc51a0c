// ds_config: checks a ds_config.json without starting a run.
//
// Exit status: 0, 2 for wrong usage, 3 when the configuration has errors, 1 when the file cannot be read.
#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/log.h"
#include "config/resolved.h"
#include "deepspeed/error.h"

namespace {

using deepspeed::config::Resolved;
using Json = nlohmann::ordered_json;

constexpr int kBadConfiguration = 3;

void print_json(const Resolved& resolved, int64_t world) {
  Json errors = Json::array();
  for (const auto& issue : resolved.result.issues) {
    errors.push_back({{"path", issue.path}, {"kind", to_string(issue.kind)}, {"message", issue.message}});
  }
  Json values = Json::object();
  for (const auto& value : resolved.values) values[value.path] = {{"value", value.value}, {"from", to_string(value.source)}};
  const Json notes = errors.empty() ? Json(resolved.result.config.notes) : Json::array();
  const Json report = {{"world_size", world}, {"errors", errors}, {"notes", notes}, {"values", values}};
  std::cout << report.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
}

void print_errors(const Resolved& resolved, const std::string& file) {
  const auto& issues = resolved.result.issues;
  std::cerr << file << " has " << issues.size() << (issues.size() == 1 ? " error:\n" : " errors:\n");
  for (const auto& issue : issues) std::cerr << "  " << (issue.path.empty() ? "" : issue.path + ": ") << issue.message << "\n";
}

void print_values(const Resolved& resolved) {
  for (const auto& value : resolved.values) {
    std::cout << value.path << " = " << value.value.dump() << "  (" << to_string(value.source) << ")\n";
  }
  for (const auto& note : resolved.result.config.notes) std::cout << "note: " << note << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Checks a ds_config.json without starting a run.", "ds_config");
  app.set_version_flag("--version", std::string("ds_config ") + DEEPSPEED_VERSION);
  app.require_subcommand(1);
  CLI::App* check =
      app.add_subcommand("check", "Print every value that a run would use and where it comes from, or every error of the file");
  std::string file;
  int64_t world = 1;
  bool as_json = false;
  check->add_option("FILE", file, "The configuration")->required()->type_name("");
  check->add_option("--world", world, "Ranks of the run (default 1)")->check(CLI::PositiveNumber.description(""))->type_name("N");
  check->add_flag("--json", as_json, "One JSON object: world_size, errors, notes, values");
  app.footer("ds_config check: FILE, --world N (ranks of the run, default 1), --json (one JSON object: world_size, errors, notes, values)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    const Resolved resolved = deepspeed::config::resolve_config(deepspeed::base::read_file(file), world);
    const bool good = resolved.result.issues.empty();
    if (as_json) {
      print_json(resolved, world);
    } else if (good) {
      print_values(resolved);
    } else {
      print_errors(resolved, file);
    }
    return good ? 0 : kBadConfiguration;
  } catch (const deepspeed::Error& error) {
    deepspeed::base::log_error(error.what());
    return deepspeed::exit_status(error);
  }
}
