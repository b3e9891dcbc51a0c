// The subcommands of ds_checkpoint. Each prints to stdout and returns an exit status: 0, or 1 when something is damaged or different. Errors are thrown.
#pragma once

#include <string>

namespace deepspeed::tools {

int list(const std::string& directory, bool as_json);
int show(const std::string& path, const std::string& tag, bool parameters, bool as_json);
int verify(const std::string& path, const std::string& tag, bool all);
int diff(const std::string& one, const std::string& other);
int prune(const std::string& directory, int keep, bool dry_run);

}  // namespace deepspeed::tools
