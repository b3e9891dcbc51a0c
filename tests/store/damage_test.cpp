// Whatever happens to the bytes of a checkpoint is noticed and named before anybody uses them.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <random>

#include "store/checkpoint.h"
#include "store/database.h"
#include "store/memory_disk.h"
#include "store/small_save.h"

namespace deepspeed::store {
namespace {

using testing::error_text;
using testing::MemoryDisk;
using testing::small_check;
using testing::small_index;
using testing::small_save;

constexpr const char* kPath = "runs/a";

bool names_damage(const std::string& error, const std::string& file) {
  return (error.find("E3001") != std::string::npos || error.find("E3000") != std::string::npos) && error.find(file) != std::string::npos;
}

class Damage : public ::testing::Test {
 protected:
  Damage() { small_save(disk_, "runs", "a", 5, 2); }

  std::string check() {
    return error_text([&] { small_check(disk_, kPath); });
  }

  void flip(const std::string& file, uint64_t bit) {
    disk_.content(std::string(kPath) + "/" + file)[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
  }

  MemoryDisk disk_;
};

TEST_F(Damage, EveryBitOfIndexAndChecksums) {
  ASSERT_EQ(check(), "");
  for (const std::string file : {kIndexFile, kChecksumsFile}) {
    const uint64_t bits = disk_.content(std::string(kPath) + "/" + file).size() * 8;
    for (uint64_t bit = 0; bit < bits; ++bit) {
      flip(file, bit);
      const std::string error = error_text([&] { Checkpoint(disk_, kPath); });
      ASSERT_TRUE(names_damage(error, kPath)) << file << " bit " << bit << ": " << error;
      flip(file, bit);
    }
  }
  EXPECT_EQ(check(), "");
}

TEST_F(Damage, EveryBitOfTheDataFiles) {
  for (const std::string file : {"rank_00000_of_00002.safetensors", "rank_00001_of_00002.safetensors"}) {
    const uint64_t bits = disk_.content(std::string(kPath) + "/" + file).size() * 8;
    for (uint64_t bit = 0; bit < bits; ++bit) {
      flip(file, bit);
      Checkpoint checkpoint(disk_, kPath);
      std::vector<std::string> problems;
      for (size_t f = 0; f < checkpoint.index().files.size(); ++f) checkpoint.verify_file(f, problems);
      ASSERT_EQ(problems.size(), 1u) << file << " bit " << bit;
      ASSERT_NE(problems[0].find(file), std::string::npos) << problems[0];
      if (bit % 97 == 0) {
        ASSERT_TRUE(names_damage(check(), file)) << file << " bit " << bit;
      }
      flip(file, bit);
    }
  }
}

TEST_F(Damage, EveryLengthOfEveryFile) {
  for (const auto& path : disk_.all_files()) {
    if (!path.starts_with(std::string(kPath) + "/")) continue;
    const std::vector<std::byte> whole = disk_.content(path);
    const size_t stride = whole.size() > 4096 ? 61 : 1;
    for (size_t length = 0; length < whole.size(); length += stride) {
      disk_.content(path).assign(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(length));
      ASSERT_TRUE(names_damage(check(), kPath)) << path << " of " << length << " bytes";
    }
    disk_.content(path) = whole;
    disk_.content(path).push_back(std::byte{0});
    ASSERT_TRUE(names_damage(check(), kPath)) << path << " with a byte more";
    disk_.content(path) = whole;
  }
  EXPECT_EQ(check(), "");
}

TEST_F(Damage, MissingFilesAreNamed) {
  for (const auto& path : disk_.all_files()) {
    if (!path.starts_with(std::string(kPath) + "/")) continue;
    MemoryDisk without = disk_.after_death();
    without.remove(path);
    const std::string error = error_text([&] { small_check(without, kPath); });
    EXPECT_TRUE(names_damage(error, path)) << path << ": " << error;
  }
}

// Somebody damages the index and makes its hash right again: a reader must stay safe, and what it accepts must hold together.
TEST_F(Damage, AnIndexThatLies) {
  const std::string path = std::string(kPath) + "/" + kIndexFile;
  const std::vector<std::byte> whole = disk_.content(path);
  std::mt19937_64 random(3);
  int refused = 0, accepted = 0;
  const char* more = std::getenv("DS_TORTURE_STATES");
  const int rounds = more ? 100 * std::atoi(more) : 3000;
  for (int round = 0; round < rounds; ++round) {
    auto bytes = whole;
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < changes; ++i) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] ^= static_cast<std::byte>(1u << (random() % 8));
          break;
        case 1:
          bytes[at] = static_cast<std::byte>(random());
          break;
        case 2:
          bytes[at] = std::byte{0xff};
          break;
        default:
          std::copy_n(whole.begin() + static_cast<ptrdiff_t>(random() % (whole.size() - 16)), 16,
                      bytes.begin() + static_cast<ptrdiff_t>(random() % (bytes.size() - 16)));
      }
    }
    const auto begin = std::chrono::steady_clock::now();
    const std::string error = error_text([&] {
      Index index = read_index(bytes, "lie");
      check_index(index, "lie");
      ++accepted;
    });
    refused += !error.empty();
    EXPECT_TRUE(error.empty() || error.find("E3001") != std::string::npos) << error;
    // A bound against endless reading, far above what it takes.
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  }
  EXPECT_GT(refused, rounds / 10);
}

TEST_F(Damage, GapsOverlapsAndForeignPiecesAreRefused) {
  const auto base = [] {
    Index index = small_index("a", 1, 1);
    const auto shard = testing::small_shard(1, 0, 1);
    uint64_t bytes = 100;
    for (const auto& data : shard.data) bytes += data.size();
    add_shard(index, {shard_name(0, 1), bytes, 100, {}, std::vector<uint32_t>(1)}, shard.plan);
    return index;
  };
  const auto refused = [&](auto&& change, const std::string& text) {
    Index index = base();
    change(index);
    const std::string error = error_text([&] { check_index(index, "index"); });
    EXPECT_NE(error.find(text), std::string::npos) << "got: " << error << " wanted: " << text;
  };
  refused([](Index&) {}, "");
  refused([](Index& index) { index.pieces[0].count -= 1; }, "value of layer.weight: got 23 elements, allowed 24; a shard is missing");
  refused([](Index& index) { index.pieces[0].begin = 1; }, "without gap or overlap");
  refused([](Index& index) { index.pieces.push_back(index.pieces[0]); }, "without gap or overlap");
  refused([](Index& index) { index.pieces[0].offset = 0; }, "got bytes 0 to ");
  refused([](Index& index) { index.pieces[0].file = 7; }, "got file number 7 of 1");
  refused([](Index& index) { index.pieces[0].parameter = 70; }, "a piece of no parameter");
  refused([](Index& index) { index.pieces[0].kind = "weird"; }, "kind \"weird\"");
  refused([](Index& index) { index.parameters[1].name = index.parameters[0].name; }, "listed twice");
  refused([](Index& index) { index.parameters[0].shape = {int64_t{1} << 40, int64_t{1} << 40}; }, "shape of layer.weight");
  refused([](Index& index) { index.files[0].name = "../../etc/passwd"; }, "file name");
  refused([](Index& index) { index.files[0].chunks.clear(); }, "checksums for");
  refused([](Index& index) { index.generators[0].rank = 9; }, "random generator of rank 9");
  refused([](Index& index) { index.world_size = 0; }, "world_size");
}

TEST(IndexFile, ComesBackAsItWasWritten) {
  Index index = small_index("tag", 8, 2);
  for (int rank = 0; rank < 2; ++rank) {
    const auto shard = testing::small_shard(8, rank, 2);
    uint64_t bytes = 80;
    for (const auto& data : shard.data) bytes += data.size();
    FileEntry entry{shard_name(rank, 2), bytes, 80, {}, {0xffffffffu}};
    entry.hash[3] = std::byte{0xfe};
    add_shard(index, entry, shard.plan);
  }
  const auto bytes = write_index(index);
  const Index back = read_index(bytes, "index");
  EXPECT_EQ(write_index(back), write_index(read_index(write_index(back), "again")));
  EXPECT_EQ(back.tag, "tag");
  EXPECT_EQ(back.world_size, 2);
  EXPECT_EQ(back.state_names, index.state_names);
  ASSERT_EQ(back.files.size(), 2u);
  EXPECT_EQ(back.files[1].name, index.files[1].name);
  EXPECT_EQ(back.files[1].chunks, index.files[1].chunks);
  EXPECT_EQ(back.files[1].hash, index.files[1].hash);
  EXPECT_EQ(back.parameters.size(), index.parameters.size());
  EXPECT_EQ(back.pieces.size(), index.pieces.size());
  EXPECT_EQ(back.client_json, index.client_json);
}

TEST(Checksum, IsTheOneOfTheStandards) {
  const std::string text = "123456789";
  const auto bytes = std::as_bytes(std::span(text));
  EXPECT_EQ(crc32c(bytes), 0xE3069283u);  // the check value of CRC-32C (Castagnoli)
  // Of no bytes, as `printf '' | xxhsum -H2` prints.
  EXPECT_EQ(hex_of(hash_of({})), "99aa06d3014798d86001c324468d497f");
  Hash back{};
  EXPECT_TRUE(hash_from_hex(hex_of(hash_of(bytes)), &back));
  EXPECT_EQ(back, hash_of(bytes));
  EXPECT_FALSE(hash_from_hex("99aa06d3014798d86001c324468d497", &back));
  EXPECT_FALSE(hash_from_hex("99aa06d3014798d86001c324468d497g", &back));
}

TEST(Checksum, PiecesOfAnySizeGiveTheSame) {
  std::vector<std::byte> data(3 * kChunkBytes + 12345);
  std::mt19937_64 random(1);
  for (auto& byte : data) byte = static_cast<std::byte>(random());
  RunningChecksums whole;
  whole.add(data);
  EXPECT_EQ(whole.chunks().size(), 4u);
  EXPECT_EQ(whole.hash(), hash_of(data));
  RunningChecksums parts;
  for (std::span<const std::byte> rest = data; !rest.empty();) {
    const size_t count = std::min<size_t>(rest.size(), 1 + random() % 700000);
    parts.add(rest.first(count));
    rest = rest.subspan(count);
  }
  EXPECT_EQ(parts.chunks(), whole.chunks());
  EXPECT_EQ(parts.hash(), whole.hash());
  EXPECT_EQ(parts.chunks()[3], crc32c(std::span(data).subspan(3 * kChunkBytes)));
}

}  // namespace
}  // namespace deepspeed::store
