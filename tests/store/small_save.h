// A small checkpoint of a given generation, saved by some ranks in turn, and its check to the last bit.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/text.h"
#include "deepspeed/error.h"
#include "store/checkpoint.h"
#include "store/index.h"
#include "store/save_folder.h"
#include "store/shard_file.h"
#include "store/source.h"

namespace deepspeed::testing {

using store::Index;
using store::ParameterEntry;
using store::Piece;
using store::Role;
using store::ShardPlan;

inline std::vector<ParameterEntry> small_parameters() {
  return {{"layer.weight", {6, 4}, Role::kTrained},
          {"layer.bias", {3}, Role::kTrained},
          {"empty", {0, 4}, Role::kTrained},
          {"table", {5}, Role::kFrozen},
          {"mean", {2}, Role::kBuffer}};
}

inline float small_value(int generation, const std::string& what, int64_t element) {
  return static_cast<float>(generation * 1000 + static_cast<int>(what.size()) * 50 + static_cast<int>(what[0])) +
         0.25f * static_cast<float>(element);
}

inline std::vector<std::byte> small_bytes(int generation, const std::string& what, int64_t begin, int64_t count) {
  std::vector<float> values;
  for (int64_t i = begin; i < begin + count; ++i) values.push_back(small_value(generation, what, i));
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

struct SmallShard {
  ShardPlan plan;
  std::vector<std::vector<std::byte>> data;
};

inline SmallShard small_shard(int generation, int rank, int ranks) {
  SmallShard shard;
  const auto parameters = small_parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    const int64_t elements = parameters[p].elements(), part = (elements + ranks - 1) / ranks;
    const int64_t begin = std::min(elements, rank * part), end = std::min(elements, begin + part);
    const bool buffer = parameters[p].role == Role::kBuffer;
    if (buffer ? rank != 0 : begin == end) continue;
    const std::vector<std::string> kinds = parameters[p].role == Role::kTrained
                                               ? std::vector<std::string>{store::kValue, "moment", "variance"}
                                               : std::vector<std::string>{store::kValue};
    for (const auto& kind : kinds) {
      const int64_t from = buffer ? 0 : begin, count = buffer ? elements : end - begin;
      shard.plan.pieces.push_back({p, kind, from, count, formats::Dtype::kF32, 0, 0});
      shard.data.push_back(small_bytes(generation, kind + parameters[p].name, from, count));
    }
  }
  shard.plan.generators.push_back({rank, "cpu", 0, 0, 7});
  shard.data.push_back(std::vector<std::byte>(7, static_cast<std::byte>(generation + rank)));
  return shard;
}

inline Index small_index(const std::string& tag, int generation, int ranks) {
  Index index;
  index.tag = tag;
  index.world_size = ranks;
  index.state_names = {"moment", "variance"};
  index.parameters = small_parameters();
  index.run_json = base::str("{\"global_steps\":", generation, "}");
  index.client_json = base::str("{\"generation\":", generation, "}");
  index.library_version = "1.2.3";
  return index;
}

inline std::string small_save(store::FileSystem& files, const std::string& directory, const std::string& tag, int generation, int ranks,
                              int keep = 0) {
  store::SaveFolder folder(files, directory, tag);
  Index index = small_index(tag, generation, ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const SmallShard shard = small_shard(generation, rank, ranks);
    auto entry = store::write_shard(files, folder.temporary(), store::shard_name(rank, ranks), index.parameters, shard.plan,
                                    [&](size_t i) { return std::span<const std::byte>(shard.data[i]); });
    // As told to rank 0.
    store::add_shard(index, store::file_entry_from(store::to_text(entry)), shard.plan);
  }
  const std::string path = folder.commit(index);
  if (keep > 0) folder.keep_newest(keep);
  return path;
}

// Reads all of it, as a load would. Returns its generation. Throws an Error when it is damaged; a wrong value without one is a failure of the test.
inline int small_check(store::FileSystem& files, const std::string& path) {
  const auto source = store::open_native(files, path);
  const std::string client = source->client_json();
  const int generation = std::atoi(client.c_str() + std::strlen("{\"generation\":"));
  for (int rank = 0; rank < source->world_size(); ++rank) {
    source->verify_rest(rank, source->world_size());
    const auto state = source->generator(rank, "cpu");
    EXPECT_EQ(state.size(), 7u);
    for (const std::byte byte : state) EXPECT_EQ(byte, static_cast<std::byte>(generation + rank));
  }
  for (const auto& parameter : small_parameters()) {
    const int64_t count = parameter.elements();
    std::vector<std::byte> got(static_cast<size_t>(count) * sizeof(float));
    auto* out = reinterpret_cast<float*>(got.data());
    if (parameter.role == Role::kBuffer) {
      EXPECT_EQ(source->read_buffer(parameter.name), small_bytes(generation, std::string(store::kValue) + parameter.name, 0, count));
      continue;
    }
    source->read_values(parameter.name, 0, count, out);
    EXPECT_EQ(got, small_bytes(generation, std::string(store::kValue) + parameter.name, 0, count)) << parameter.name;
    if (parameter.role != Role::kTrained || count == 0) continue;
    for (const char* kind : {"moment", "variance"}) {
      source->read_state(parameter.name, {kind}, 0, count, out);
      EXPECT_EQ(got, small_bytes(generation, kind + parameter.name, 0, count)) << kind << parameter.name;
    }
  }
  return generation;
}

// What went wrong, as "E3001 text"; empty: nothing.
template <typename Call>
std::string error_text(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace deepspeed::testing
