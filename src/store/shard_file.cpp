#include "store/shard_file.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/text.h"

namespace deepspeed::store {
namespace {

using Json = nlohmann::ordered_json;

// Bytes between two calls of the file system: small enough to be in the processor's cache when the kernel copies what was just summed.
constexpr size_t kWriteBytes = kChunkBytes;

// A parameter that lies in one piece goes by its own shape, so that any safetensors reader finds it as it is.
formats::TensorSpec spec_of(const ParameterEntry& parameter, const Piece& piece) {
  const bool whole = piece.count == parameter.elements();
  std::string name = piece.kind + "/" + parameter.name;
  if (!whole) name += base::str("@", piece.begin);
  return {std::move(name), piece.dtype, whole ? parameter.shape : std::vector<int64_t>{piece.count}};
}

class SummingWriter {
 public:
  SummingWriter(FileSystem& files, const std::string& path) : writer_(files.create(path)) {}

  void append(std::span<const std::byte> data) {
    while (!data.empty()) {
      const auto part = data.first(std::min(data.size(), kWriteBytes));
      sums_.add(part);
      writer_->append(part);
      data = data.subspan(part.size());
    }
  }

  void finish() {
    writer_->sync();
    writer_->close();
  }

  const RunningChecksums& sums() const { return sums_; }

 private:
  std::unique_ptr<FileWriter> writer_;
  RunningChecksums sums_;
};

}  // namespace

std::string shard_name(int rank, int world_size) {
  char name[64];
  std::snprintf(name, sizeof name, "rank_%05d_of_%05d.safetensors", rank, world_size);
  return name;
}

FileEntry write_shard(FileSystem& files, const std::string& folder, const std::string& name, const std::vector<ParameterEntry>& parameters,
                      const ShardPlan& plan, const ShardData& data) {
  std::vector<formats::TensorSpec> specs;
  for (const auto& piece : plan.pieces) specs.push_back(spec_of(parameters.at(piece.parameter), piece));
  for (const auto& generator : plan.generators) {
    specs.push_back(
        {base::str("generator/", generator.device, "/", generator.rank), formats::Dtype::kU8, {static_cast<int64_t>(generator.bytes)}});
  }
  const std::string header = formats::make_safetensors_header(specs, {{"format", kFormatName}});
  SummingWriter writer(files, folder + "/" + name);
  writer.append(std::as_bytes(std::span(header)));
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto bytes = data(i);
    DS_CHECK(bytes.size() == specs[i].size(), specs[i].name, bytes.size());
    writer.append(bytes);
  }
  writer.finish();
  return {name, writer.sums().bytes(), header.size(), writer.sums().hash(), writer.sums().chunks()};
}

void add_shard(Index& index, FileEntry file, ShardPlan plan) {
  uint64_t offset = file.data_begin;
  for (auto& piece : plan.pieces) {
    piece.file = index.files.size();
    piece.offset = offset;
    offset += piece.bytes();
    index.pieces.push_back(std::move(piece));
  }
  for (auto& generator : plan.generators) {
    generator.file = index.files.size();
    generator.offset = offset;
    offset += generator.bytes;
    index.generators.push_back(std::move(generator));
  }
  DS_CHECK(offset == file.bytes, file.name, offset, file.bytes);
  index.files.push_back(std::move(file));
}

std::string to_text(const FileEntry& entry) {
  return Json{{"name", entry.name},
              {"bytes", entry.bytes},
              {"data_begin", entry.data_begin},
              {"xxh128", hex_of(entry.hash)},
              {"crc32c", entry.chunks}}
      .dump();
}

FileEntry file_entry_from(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  DS_CHECK(json.is_object(), text);
  FileEntry entry{json.at("name"), json.at("bytes"), json.at("data_begin"), {}, json.at("crc32c")};
  DS_CHECK(hash_from_hex(json.at("xxh128").get<std::string>(), &entry.hash), text);
  return entry;
}

}  // namespace deepspeed::store
