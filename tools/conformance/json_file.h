// Reading the data's JSON.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace deepspeed::conformance {

using Json = nlohmann::json;

// Throws std::runtime_error naming the file.
std::string read_text(const std::filesystem::path& path);
Json read_json(const std::filesystem::path& path);

}  // namespace deepspeed::conformance
