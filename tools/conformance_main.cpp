// conformance: replays reference data and says case by case whether this library gives the same.
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "conformance/families.h"
#include "deepspeed/error.h"

namespace {

namespace fs = std::filesystem;
using deepspeed::conformance::Outcome;
using deepspeed::conformance::Report;

std::vector<fs::path> sorted(const fs::path& folder) {
  std::vector<fs::path> items;
  if (fs::is_directory(folder)) {
    for (const auto& item : fs::directory_iterator(folder)) items.push_back(item.path());
  }
  std::sort(items.begin(), items.end());
  return items;
}

template <typename Call>
Outcome guarded(Call&& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    return Outcome::fail(error.what());
  }
}

void run_folders(Report& report, const fs::path& root, const std::string& family, const std::string& filter) {
  for (const auto& directory : sorted(root / family)) {
    if (!fs::is_directory(directory)) continue;
    const std::string name = family + "/" + directory.filename().string();
    if (!filter.empty() && name.find(filter) == std::string::npos) continue;
    report.add(name, guarded([&] {
                 if (family == "models") return deepspeed::conformance::run_model_case(directory);
                 if (family == "train") return deepspeed::conformance::run_train_case(root, directory);
                 return deepspeed::conformance::run_checkpoint_case(root, directory);
               }));
  }
}

void run_units(Report& report, const fs::path& folder, const std::string& filter) {
  for (const auto& file : sorted(folder)) {
    if (file.extension() != ".json") continue;
    const std::string family = folder.filename().string();
    std::vector<deepspeed::conformance::UnitCase> cases;
    const Outcome read = guarded([&] {
      cases = deepspeed::conformance::run_unit_file(family, file, filter);
      return Outcome::ok();
    });
    if (read.kind == Outcome::Kind::kFail) report.add(family + "/" + file.stem().string(), read);
    for (const auto& item : cases) report.add(item.name, item.outcome);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Replays reference data: one line per case, then \"N passed, N failed, N skipped\".", "conformance");
  std::string directory, family, filter;
  app.add_option("DIR", directory, "folder with models/, train/, checkpoints/ and units/")->required()->check(CLI::ExistingDirectory);
  app.add_option("--family", family, "models, train, checkpoints or a folder under units/");
  app.add_option("--filter", filter, "only cases whose name contains this text");
  app.set_version_flag("--version", std::string("conformance ") + DEEPSPEED_VERSION);
  app.footer(
      "Examples:\n  conformance tests/golden\n  conformance tests/golden --family train --filter stage3-bf16\nExit status: 0 nothing "
      "failed, 1 a case failed, 2 usage.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  at::set_num_threads(1);
  if (!std::getenv("DS_LOG_LEVEL")) ::setenv("DS_LOG_LEVEL", "error", 1);
  const fs::path root = directory;
  std::vector<std::string> families = {"models", "train", "checkpoints"};
  for (const auto& folder : sorted(root / "units")) {
    if (fs::is_directory(folder)) families.push_back(folder.filename().string());
  }
  if (!family.empty() && std::find(families.begin(), families.end(), family) == families.end()) {
    std::string known;
    for (const auto& name : families) known += " " + name;
    std::fprintf(stderr, "conformance: --family: got %s, allowed%s\n", family.c_str(), known.c_str());
    return 2;
  }
  Report report;
  for (const auto& name : families) {
    if (!family.empty() && name != family) continue;
    if (name == "models" || name == "train" || name == "checkpoints") {
      run_folders(report, root, name, filter);
    } else {
      run_units(report, root / "units" / name, filter);
    }
  }
  return report.finish();
}
