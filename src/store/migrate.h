// Any checkpoint that this library reads, written again in the present format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "store/file_system.h"
#include "store/source.h"

namespace deepspeed::store {

struct MigrateOptions {
  uint64_t max_file_bytes = uint64_t{5} << 30;                  // a larger tensor has a file of its own
  std::function<void(uint64_t done, uint64_t total)> progress;  // bytes; while writing, and again while comparing
};

struct Migrated {
  std::string path;
  size_t parameters = 0, files = 0;
  uint64_t bytes = 0;
};

// What migrate() would write.
Migrated plan_migration(Source& source, const std::string& directory, const std::string& tag, const MigrateOptions& options);

// Writes `source` as DIR/TAG, fp32 throughout, atomically as every save; then reads it back and compares all elements. Holds one tensor at a time in memory.
// Throws Error(kUsage) when DIR/TAG exists, what reading `source` throws, Error(kFile), Error(kCheckpointWrite).
Migrated migrate(FileSystem& files, Source& source, const std::string& directory, const std::string& tag, const MigrateOptions& options);

}  // namespace deepspeed::store
