// Finding the user's program and the command line that runs it.
#pragma once

#include <string>
#include <vector>

#include "base/environment.h"

namespace deepspeed::launcher {

// How PROGRAM is meant.
enum class ProgramKind {
  kByName,  // Python if its name ends in .py, else directly
  kModule,  // a Python module (--module)
  kDirect,  // directly, whatever its name (--no_python)
};

struct Program {
  std::vector<std::string> command;  // what to execute, up to and including the program itself; command[0] is a path with a '/'
  bool is_python = false;
};

// Python is $PYTHON, else python3 of PATH. Error(kEnvironment) when something is not there or may not be run.
Program find_program(const std::string& name, ProgramKind kind, const base::Environment& environment);

}  // namespace deepspeed::launcher
