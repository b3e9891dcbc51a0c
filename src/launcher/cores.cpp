#include "launcher/cores.h"

#include <sched.h>

#include <set>
#include <sstream>

#include "base/environment.h"
#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::launcher {

std::vector<int> parse_core_list(const std::string& list) {
  const auto fail = [&list](const std::string& allowed) {
    throw Error(ErrorCode::kUsage, "launcher", base::str("--bind_core_list: got \"", list, "\", allowed ", allowed));
  };
  std::vector<int> cores;
  std::set<int> seen;
  std::istringstream parts(list);
  std::string part;
  while (std::getline(parts, part, ',')) {
    const size_t dash = part.find('-');
    const auto first = base::parse_integer(part.substr(0, dash));
    const auto last = dash == std::string::npos ? first : base::parse_integer(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= CPU_SETSIZE) fail("numbers and ranges of cores, such as 0-10,20");
    for (int core = static_cast<int>(*first); core <= *last; ++core) {
      if (!seen.insert(core).second) fail(base::str("each core once (core ", core, ")"));
      cores.push_back(core);
    }
  }
  if (cores.empty() || list.back() == ',') fail("numbers and ranges of cores, such as 0-10,20");
  return cores;
}

std::vector<std::vector<int>> split_cores(const std::vector<int>& cores, int ranks) {
  const size_t each = cores.size() / ranks;
  if (each == 0) {
    throw Error(ErrorCode::kUsage, "launcher",
                base::str("--bind_cores_to_rank: got ", cores.size(), " cores for ", ranks, " ranks, allowed at least one core a rank"));
  }
  std::vector<std::vector<int>> parts;
  for (int rank = 0; rank < ranks; ++rank) parts.emplace_back(cores.begin() + rank * each, cores.begin() + (rank + 1) * each);
  return parts;
}

}  // namespace deepspeed::launcher
