// The table that ds_report prints: sections of named values, and lists of texts. Colour only on a terminal that wants it.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

namespace report {

using Json = nlohmann::ordered_json;

inline bool wants_colour() {
  const char* off = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return isatty(STDOUT_FILENO) && !(off && *off) && !(terminal && std::string(terminal) == "dumb");
}

// Truth as yes or no, "..._bytes" in GiB, missing text as a dash.
inline std::string shown(const std::string& name, const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_string()) return value.get<std::string>().empty() ? "-" : value.get<std::string>();
  if (name.find("_bytes") == std::string::npos) return value.dump();
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << value.get<double>() / (1 << 30) << " GiB";
  return text.str();
}

inline void print_table(const Json& sections) {
  const bool colour = wants_colour();
  const auto paint = [colour](const char* code, const std::string& text) {
    return colour ? "\033[" + (code + ("m" + text)) + "\033[0m" : text;
  };
  for (const auto& [section, rows] : sections.items()) {
    if (rows.empty()) continue;
    std::cout << paint("1", section) << "\n";
    if (rows.is_array()) {
      for (const auto& text : rows) std::cout << "  " << paint(section == "errors" ? "31" : "33", text.get<std::string>()) << "\n";
      continue;
    }
    for (const auto& [name, value] : rows.items()) {
      const std::string text = shown(name, value);
      const std::string label = name.substr(0, name.find("_bytes"));
      std::cout << "  " << label << " " << std::string(24 - std::min<size_t>(label.size(), 22), '.') << " "
                << (text == "yes"  ? paint("32", text)
                    : text == "no" ? paint("33", text)
                                   : text)
                << "\n";
    }
  }
}

}  // namespace report
