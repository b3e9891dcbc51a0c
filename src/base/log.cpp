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

void write_line(const std::string& line) {
  const std::string text = line + "\n";
  // A failed write to stderr has nowhere to be reported.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

std::atomic<int>& threshold() {
  static std::atomic<int> value = [] {
    const char* text = std::getenv("DS_LOG_LEVEL");
    const int level = text ? level_of(text) : -1;
    if (level >= 0) return level;
    if (text && *text)
      write_line(str("[deepspeed] warning: DS_LOG_LEVEL: got \"", text, "\", allowed debug, info, warning, error; taking info"));
    return static_cast<int>(LogLevel::kInfo);
  }();
  return value;
}

// Our launcher puts the rank before each line of several ranks, and says so.
bool lines_have_rank() {
  static const bool have = std::getenv("DS_LINES_HAVE_RANK") != nullptr;
  return have;
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
  if (thread_rank >= 0 && !lines_have_rank()) line += str(" [rank ", thread_rank, "]");
  if (level != LogLevel::kInfo) line += str(" ", kNames[static_cast<int>(level)], ":");
  write_line(line + " " + text);
}

}  // namespace deepspeed::base
