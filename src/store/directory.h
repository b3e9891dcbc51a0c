// The checkpoints of a folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "store/file_system.h"

namespace deepspeed::store {

enum class Kind {
  kNative,      // of this library, format version 2
  kNativeJson,  // of this library, format version 1 (index.json)
  kZero,        // of the real DeepSpeed: model and optimizer states of ranks
  kUniversal,   // of the real DeepSpeed, converted
};
const char* kind_name(Kind kind);
// By the names of the files in DIR/TAG; empty: no checkpoint.
std::optional<Kind> kind_of_checkpoint(FileSystem& files, const std::string& path);

struct Listed {
  std::string tag;
  Kind kind = Kind::kNative;
  int64_t global_steps = -1;  // -1: not known
  int world_size = 0;         // that saved it; 0: not known
  uint64_t bytes = 0;
  std::string problem;  // what is wrong with its index; empty: nothing. The data are not looked at
};

// In order of their steps, the newest last; what is damaged so much that its step is not known comes first.
std::vector<Listed> list_checkpoints(FileSystem& files, const std::string& directory);

// What DIR/latest (or another file of that kind) says, without white space at the end; empty when there is none.
std::string latest_tag(FileSystem& files, const std::string& directory, const std::string& file = "latest");

// For messages: which tags a folder has, the newest last.
std::string describe_tags(FileSystem& files, const std::string& directory);

// Removes all checkpoints of format version 2 but the newest `keep` whole ones; never what `latest` names, nothing damaged (it may hold what somebody wants to
// rescue), nothing of another kind. Returns the tags; `dry_run`: does no more than that. A death meanwhile leaves each either whole or gone. Throws
// Error(kUsage) when keep < 1.
std::vector<std::string> prune(FileSystem& files, const std::string& directory, int keep, bool dry_run = false);

}  // namespace deepspeed::store
