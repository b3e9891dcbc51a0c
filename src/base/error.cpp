#include "deepspeed/error.h"

#include "base/check.h"
#include "base/text.h"

namespace deepspeed {

Error::Error(ErrorCode code, std::string_view component, std::string_view message)
    : std::runtime_error(base::str("[", component, "] E", static_cast<int>(code), " ", message)), code_(code), component_(component) {}

int exit_status(const Error& error) noexcept {
  switch (error.code()) {
    case ErrorCode::kUsage:
      return 2;
    case ErrorCode::kConfigInvalid:
    case ErrorCode::kNotBuilt:
      return 3;
    case ErrorCode::kEnvironment:
      return 4;
    case ErrorCode::kCommFailed:
    case ErrorCode::kCommTimeout:
    case ErrorCode::kCommMismatch:
    case ErrorCode::kPeerDied:
      return 5;
    default:
      return 1;
  }
}

namespace base {

void check_failed(const char* file, int line, const char* expression, const std::string& detail) {
  throw Error(ErrorCode::kInternal, "internal",
              str("check failed: ", expression, detail.empty() ? "" : ": ", detail, " (", file, ":", line,
                  "); please report this with the run's configuration"));
}

}  // namespace base
}  // namespace deepspeed
