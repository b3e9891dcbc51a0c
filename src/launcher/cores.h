// Which cores a rank runs on.
#pragma once

#include <string>
#include <vector>

namespace deepspeed::launcher {

// "0-10,20,30-31" -> the numbers in that order. Error(kUsage) on anything else, a core named twice included.
std::vector<int> parse_core_list(const std::string& list);

// `cores` in `ranks` consecutive parts of equal size; what does not divide evenly stays unused. Error(kUsage) on fewer cores than ranks.
std::vector<std::vector<int>> split_cores(const std::vector<int>& cores, int ranks);

}  // namespace deepspeed::launcher
