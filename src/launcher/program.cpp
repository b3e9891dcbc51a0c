#include "launcher/program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>

#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::launcher {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& got, const std::string& allowed) {
  throw Error(ErrorCode::kEnvironment, "launcher", base::str(what, ": got ", got, ", allowed ", allowed));
}

bool is_file(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && !S_ISDIR(status.st_mode);
}

bool is_executable(const std::string& path) { return is_file(path) && access(path.c_str(), X_OK) == 0; }

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// The file that executing `name` would run, with the shell's rules; a name with a '/' is a path.
std::string resolve(const std::string& what, const std::string& name, const base::Environment& environment) {
  if (name.find('/') != std::string::npos) {
    if (!is_file(name)) fail(what, base::str("\"", name, "\", which is not there"), "the path of a program");
    if (!is_executable(name)) fail(what, base::str("\"", name, "\", which is not executable"), "a file with execute permission (chmod +x)");
    return name;
  }
  std::istringstream folders(environment.text("PATH").value_or("/usr/local/bin:/usr/bin:/bin"));
  std::string folder;
  while (std::getline(folders, folder, ':')) {
    const std::string path = (folder.empty() ? "." : folder) + "/" + name;
    if (is_executable(path)) return path;
  }
  fail(what, base::str("\"", name, "\", which is not in PATH"),
       is_file(name) ? base::str("./", name, " for the file in this folder") : std::string("a program in PATH or a path"));
}

}  // namespace

Program find_program(const std::string& name, ProgramKind kind, const base::Environment& environment) {
  Program program;
  program.is_python = kind == ProgramKind::kModule || (kind == ProgramKind::kByName && ends_with(name, ".py"));
  if (!program.is_python) {
    program.command = {resolve("program", name, environment)};
    return program;
  }
  // -u: what a rank prints is seen when it prints it, also when it is killed right after.
  program.command = {resolve("Python ($PYTHON, else python3)", environment.text("PYTHON").value_or("python3"), environment), "-u"};
  if (kind == ProgramKind::kModule) {
    program.command.push_back("-m");
  } else if (!is_file(name)) {
    fail("program", base::str("\"", name, "\", which is not there"), "the path of a Python script");
  } else if (access(name.c_str(), R_OK) != 0) {
    fail("program", base::str("\"", name, "\", which cannot be read (", std::strerror(errno), ")"), "a readable Python script");
  }
  program.command.push_back(name);
  return program;
}

}  // namespace deepspeed::launcher
