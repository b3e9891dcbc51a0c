#include "launcher/slurm_list.h"

#include <sstream>

#include "base/environment.h"
#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::launcher {
namespace {

[[noreturn]] void malformed(const std::string& variable, const std::string& list, const char* allowed) {
  throw Error(ErrorCode::kEnvironment, "launcher", base::str("environment variable ", variable, ": got \"", list, "\", allowed ", allowed));
}

}  // namespace

std::string first_slurm_host(const std::string& list, const std::string& variable) {
  constexpr const char* kAllowed = "host names with ranges in brackets, such as node[01-04,7]";
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] == ']') malformed(variable, list, kAllowed);
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    // The first number of the bracket belongs to the first host; the rest of the bracket to others.
    const size_t close = list.find(']', i);
    const size_t first_end = list.find_first_of("-,]", i);
    if (close == std::string::npos || first_end == i + 1) malformed(variable, list, kAllowed);
    host += list.substr(i + 1, first_end - i - 1);
    i = close;
  }
  if (host.empty()) malformed(variable, list, kAllowed);
  return host;
}

int slurm_tasks_on_node(const std::string& list, int node, const std::string& variable) {
  constexpr const char* kAllowed = "task counts per node, such as 4(x2),1, with an entry for this node";
  std::istringstream entries(list);
  std::string entry;
  int64_t position = 0;
  while (std::getline(entries, entry, ',')) {
    int64_t repeats = 1;
    const size_t open = entry.find("(x");
    if (open != std::string::npos) {
      if (entry.back() != ')') malformed(variable, list, kAllowed);
      repeats = base::parse_integer(entry.substr(open + 2, entry.size() - open - 3)).value_or(0);
      entry.resize(open);
    }
    const int64_t tasks = base::parse_integer(entry).value_or(0);
    if (tasks < 1 || repeats < 1 || tasks > 1'000'000 || repeats > 1'000'000) malformed(variable, list, kAllowed);
    position += repeats;
    if (node < position) return static_cast<int>(tasks);
  }
  malformed(variable, list, kAllowed);
}

}  // namespace deepspeed::launcher
