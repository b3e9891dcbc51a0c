#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>

namespace deepspeed::base {
namespace {

constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
thread_local int thread_rank = -1;

int level_of(const std::string& name) {
  for (int i = 0; i < 4; ++i) {
    if (name == kNames[i]) return i;
  }
  return -1;
}

std::atomic<int>& threshold() {
  static std::atomic<int> value = [] {
    const char* text = std::getenv("DS_LOG_LEVEL");
    const int level = text ? level_of(text) : -1;
    return level >= 0 ? level : static_cast<int>(LogLevel::kInfo);
  }();
  return value;
}

}  // namespace

void set_log_rank(int rank) { thread_rank = rank; }

bool set_log_level(const std::string& name) {
  const int level = level_of(name);
  if (level >= 0) threshold() = level;
  return level >= 0;
}

bool log_enabled(LogLevel level) { return static_cast<int>(level) >= threshold(); }

void log_line(LogLevel level, const std::string& text) {
  std::string line = "[deepspeed]";
  if (thread_rank >= 0) line += str(" [rank ", thread_rank, "]");
  if (level != LogLevel::kInfo) line += str(" ", kNames[static_cast<int>(level)], ":");
  line += " " + text + "\n";
  // A failed write to stderr has nowhere to be reported.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace deepspeed::base
