// Log lines on stderr: `[deepspeed] [rank r] text`. Data belongs on stdout; this is chatter.
//
// Level from DS_LOG_LEVEL (debug, info, warning, error; default info). Safe from any thread: one write call per line.
#pragma once

#include <string>

#include "base/text.h"

namespace deepspeed::base {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Rank shown in each line; -1 (the start value) shows none. Per thread, as ranks can be threads.
void set_log_rank(int rank);
// Least level that is printed. Returns false for an unknown name.
bool set_log_level(const std::string& name);
bool log_enabled(LogLevel level);
void log_line(LogLevel level, const std::string& text);

template <typename... Parts>
void log_debug(const Parts&... parts) {
  if (log_enabled(LogLevel::kDebug)) log_line(LogLevel::kDebug, str(parts...));
}
template <typename... Parts>
void log_info(const Parts&... parts) {
  if (log_enabled(LogLevel::kInfo)) log_line(LogLevel::kInfo, str(parts...));
}
template <typename... Parts>
void log_warning(const Parts&... parts) {
  if (log_enabled(LogLevel::kWarning)) log_line(LogLevel::kWarning, str(parts...));
}
template <typename... Parts>
void log_error(const Parts&... parts) {
  log_line(LogLevel::kError, str(parts...));
}

}  // namespace deepspeed::base
