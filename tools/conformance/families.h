// The families of reference data. Each function replays one case.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "conformance/report.h"

namespace deepspeed::conformance {

// models/NAME
Outcome run_model_case(const std::filesystem::path& directory);

// train/NAME; `root` is the folder that holds models/ and train/.
Outcome run_train_case(const std::filesystem::path& root, const std::filesystem::path& directory);

// checkpoints/NAME
Outcome run_checkpoint_case(const std::filesystem::path& root, const std::filesystem::path& directory);

// A case of a file units/FAMILY/FILE.json: its name "FILE/ID" and what came of it. Families that are not built yet give one skip for each case.
struct UnitCase {
  std::string name;
  Outcome outcome;
};
std::vector<UnitCase> run_unit_file(const std::string& family, const std::filesystem::path& file, const std::string& filter);

}  // namespace deepspeed::conformance
