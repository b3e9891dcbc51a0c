#include "conformance/json_file.h"

#include <fstream>
#include <sstream>
#include <stdexcept>

namespace deepspeed::conformance {

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return text.str();
}

Json read_json(const std::filesystem::path& path) {
  try {
    return Json::parse(read_text(path));
  } catch (const Json::exception& error) {
    throw std::runtime_error(path.string() + ": " + error.what());
  }
}

}  // namespace deepspeed::conformance
