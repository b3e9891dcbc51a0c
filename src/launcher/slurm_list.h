// Slurm's compressed lists, as it puts them into a job's environment. Malformed text is an Error(kEnvironment) naming `variable`.
#pragma once

#include <string>

namespace deepspeed::launcher {

// First host of a node list: "gpu[007-009,12],login1" -> "gpu007", "r[0-3]n[1-2]" -> "r0n1".
std::string first_slurm_host(const std::string& list, const std::string& variable);

// Entry number `node` of a list of task counts: "4(x2),1" is 4, 4, 1.
int slurm_tasks_on_node(const std::string& list, int node, const std::string& variable);

}  // namespace deepspeed::launcher
