// The data file of one rank: a safetensors file whose tensors are pieces of parameters.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "store/file_system.h"
#include "store/index.h"

namespace deepspeed::store {

// What one rank's file holds, in the order of its data: pieces, then states of random generators. `file` and `offset` are not set yet.
struct ShardPlan {
  std::vector<Piece> pieces;
  std::vector<GeneratorEntry> generators;
};

std::string shard_name(int rank, int world_size);  // "rank_00000_of_00002.safetensors"

// The bytes of item `i` of a plan: its pieces, then its generators. Asked for in this order, once each; valid until the next call.
using ShardData = std::function<std::span<const std::byte>(size_t i)>;

// Writes FOLDER/NAME and syncs it. `parameters`: what the pieces refer to. Returns its entry for the index. Throws Error(kFile), and what `data` throws; nothing is
// removed then.
FileEntry write_shard(FileSystem& files, const std::string& folder, const std::string& name, const std::vector<ParameterEntry>& parameters,
                      const ShardPlan& plan, const ShardData& data);

// Adds a written file, and the places of its pieces, to an index. Files come in the order of their ranks.
void add_shard(Index& index, FileEntry file, ShardPlan plan);

// The entry of a file as text and back, to tell it to another rank.
std::string to_text(const FileEntry& entry);
FileEntry file_entry_from(const std::string& text);  // Error(kInternal) on anything else

}  // namespace deepspeed::store
