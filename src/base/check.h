// DS_CHECK: an invariant of our own code. Never for judging input: that is deepspeed::Error with a code.
#pragma once

#include <string>

#include "base/text.h"

namespace deepspeed::base {

[[noreturn]] void check_failed(const char* file, int line, const char* expression, const std::string& detail);

}  // namespace deepspeed::base

// DS_CHECK(condition, parts...): parts are joined into the message; name both operands there.
#define DS_CHECK(condition, ...)                                                                                              \
  do {                                                                                                                        \
    if (!(condition))                                                                                                         \
      ::deepspeed::base::check_failed(__FILE__, __LINE__, #condition, ::deepspeed::base::str("" __VA_OPT__(, ) __VA_ARGS__)); \
  } while (0)
