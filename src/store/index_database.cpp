// Index <-> SQLite.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/text.h"
#include "deepspeed/error.h"
#include "formats/safetensors_header.h"
#include "store/database.h"
#include "store/index.h"

namespace deepspeed::store {
namespace {

using Json = nlohmann::ordered_json;

// A reader wants exactly this schema: whatever else a file declares (views, triggers, other columns) is refused before any row is read.
constexpr const char* kTables[][2] = {
    {"meta", "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT"},
    {"file",
     "CREATE TABLE file (id INTEGER PRIMARY KEY, name TEXT NOT NULL, bytes INTEGER NOT NULL, data_begin INTEGER NOT NULL, xxh128 BLOB NOT "
     "NULL, "
     "crc32c BLOB NOT NULL) STRICT"},
    {"parameter", "CREATE TABLE parameter (id INTEGER PRIMARY KEY, name TEXT NOT NULL, shape TEXT NOT NULL, role TEXT NOT NULL) STRICT"},
    {"piece",
     "CREATE TABLE piece (parameter INTEGER NOT NULL, kind TEXT NOT NULL, element_begin INTEGER NOT NULL, elements INTEGER NOT NULL, dtype "
     "TEXT NOT NULL, "
     "file INTEGER NOT NULL, offset INTEGER NOT NULL, bytes INTEGER NOT NULL) STRICT"},
    {"generator",
     "CREATE TABLE generator (rank INTEGER NOT NULL, device TEXT NOT NULL, file INTEGER NOT NULL, offset INTEGER NOT NULL, bytes INTEGER "
     "NOT "
     "NULL) STRICT"}};

std::span<const std::byte> bytes_of(const Hash& hash) { return hash; }

// Little endian, four bytes each.
std::vector<std::byte> packed(const std::vector<uint32_t>& chunks) {
  std::vector<std::byte> bytes(chunks.size() * 4);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(chunks[i / 4] >> (8 * (i % 4)));
  return bytes;
}

std::vector<uint32_t> unpacked(const std::vector<std::byte>& bytes) {
  if (bytes.size() % 4 != 0) throw std::runtime_error("crc32c: got no whole number of checksums");
  std::vector<uint32_t> chunks(bytes.size() / 4, 0);
  for (size_t i = 0; i < bytes.size(); ++i) chunks[i / 4] |= std::to_integer<uint32_t>(bytes[i]) << (8 * (i % 4));
  return chunks;
}

formats::Dtype dtype_from(const std::string& name) {
  formats::Dtype dtype{};
  if (!formats::dtype_from_name(name, &dtype)) throw std::runtime_error(base::str("dtype: got \"", name, "\""));
  return dtype;
}

Role role_from(const std::string& name) {
  for (const Role role : {Role::kTrained, Role::kFrozen, Role::kBuffer}) {
    if (name == role_name(role)) return role;
  }
  throw std::runtime_error(base::str("role: got \"", name, "\", allowed trained, frozen, buffer"));
}

void write_meta(Database& database, const Index& index) {
  auto row = database.prepare("INSERT INTO meta VALUES (?, ?)");
  const std::pair<const char*, std::string> values[] = {{"format", kFormatName},
                                                        {"version", std::to_string(kFormatVersion)},
                                                        {"tag", index.tag},
                                                        {"world_size", std::to_string(index.world_size)},
                                                        {"chunk_bytes", std::to_string(kChunkBytes)},
                                                        {"states", Json(index.state_names).dump()},
                                                        {"run", index.run_json},
                                                        {"client_state", index.client_json},
                                                        {"library_version", index.library_version}};
  for (const auto& [key, value] : values) row.bind(std::string_view(key)).bind(value).run();
}

void write_rows(Database& database, const Index& index) {
  auto file = database.prepare("INSERT INTO file VALUES (?, ?, ?, ?, ?, ?)");
  for (size_t i = 0; i < index.files.size(); ++i) {
    const auto& entry = index.files[i];
    file.bind(static_cast<int64_t>(i))
        .bind(entry.name)
        .bind(static_cast<int64_t>(entry.bytes))
        .bind(static_cast<int64_t>(entry.data_begin));
    file.bind(bytes_of(entry.hash)).bind(std::span<const std::byte>(packed(entry.chunks))).run();
  }
  auto parameter = database.prepare("INSERT INTO parameter VALUES (?, ?, ?, ?)");
  for (size_t i = 0; i < index.parameters.size(); ++i) {
    const auto& entry = index.parameters[i];
    parameter.bind(static_cast<int64_t>(i))
        .bind(entry.name)
        .bind(Json(entry.shape).dump())
        .bind(std::string_view(role_name(entry.role)))
        .run();
  }
  auto piece = database.prepare("INSERT INTO piece VALUES (?, ?, ?, ?, ?, ?, ?, ?)");
  for (const auto& entry : index.pieces) {
    piece.bind(static_cast<int64_t>(entry.parameter)).bind(entry.kind).bind(entry.begin).bind(entry.count);
    piece.bind(std::string_view(formats::dtype_name(entry.dtype))).bind(static_cast<int64_t>(entry.file));
    piece.bind(static_cast<int64_t>(entry.offset)).bind(static_cast<int64_t>(entry.bytes())).run();
  }
  auto generator = database.prepare("INSERT INTO generator VALUES (?, ?, ?, ?, ?)");
  for (const auto& entry : index.generators) {
    generator.bind(static_cast<int64_t>(entry.rank)).bind(entry.device).bind(static_cast<int64_t>(entry.file));
    generator.bind(static_cast<int64_t>(entry.offset)).bind(static_cast<int64_t>(entry.bytes)).run();
  }
}

void check_schema(Database& database) {
  auto rows = database.prepare("SELECT name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_autoindex_%' ORDER BY rowid");
  for (const auto& [name, sql] : kTables) {
    if (!rows.next() || rows.text(0) != name || rows.text(1) != sql)
      throw std::runtime_error(base::str("table ", name, ": not as it must be"));
  }
  if (rows.next()) throw std::runtime_error(base::str("table ", rows.text(0), ": not one of an index"));
}

uint64_t natural(int64_t value, const char* what) {
  if (value < 0) throw std::runtime_error(base::str(what, ": got ", value, ", allowed 0 or more"));
  return static_cast<uint64_t>(value);
}

void read_meta(Database& database, Index& index) {
  std::vector<std::pair<std::string, std::string>> found;
  auto rows = database.prepare("SELECT key, value FROM meta");
  while (rows.next()) found.emplace_back(rows.text(0), rows.text(1));
  const auto value = [&](const char* key) {
    const auto row = std::find_if(found.begin(), found.end(), [&](const auto& pair) { return pair.first == key; });
    if (row == found.end()) throw std::runtime_error(base::str("meta: ", key, " is missing"));
    return row->second;
  };
  if (value("format") != kFormatName)
    throw std::runtime_error(base::str("format: got \"", value("format"), "\", allowed \"", kFormatName, "\""));
  if (value("version") != std::to_string(kFormatVersion)) {
    throw std::runtime_error(base::str("version: got ", value("version"), ", allowed ", kFormatVersion, "; a newer library wrote this"));
  }
  if (value("chunk_bytes") != std::to_string(kChunkBytes)) throw std::runtime_error(base::str("chunk_bytes: got ", value("chunk_bytes")));
  index.tag = value("tag");
  index.world_size = Json::parse(value("world_size")).get<int>();
  index.state_names = Json::parse(value("states")).get<std::vector<std::string>>();
  index.run_json = value("run");
  index.client_json = value("client_state");
  index.library_version = value("library_version");
  for (const auto* json : {&index.run_json, &index.client_json}) {
    if (!Json::accept(*json)) throw std::runtime_error("meta: run or client_state is no JSON");
  }
}

void read_rows(Database& database, Index& index) {
  auto file = database.prepare("SELECT id, name, bytes, data_begin, xxh128, crc32c FROM file ORDER BY id");
  while (file.next()) {
    FileEntry entry{file.text(1), natural(file.integer(2), "bytes"), natural(file.integer(3), "data_begin"), {}, unpacked(file.blob(5))};
    const auto hash = file.blob(4);
    if (hash.size() != entry.hash.size()) throw std::runtime_error("xxh128: not 16 bytes");
    std::copy(hash.begin(), hash.end(), entry.hash.begin());
    if (file.integer(0) != static_cast<int64_t>(index.files.size())) throw std::runtime_error("file: ids are not 0, 1, ...");
    index.files.push_back(std::move(entry));
  }
  auto parameter = database.prepare("SELECT id, name, shape, role FROM parameter ORDER BY id");
  while (parameter.next()) {
    if (parameter.integer(0) != static_cast<int64_t>(index.parameters.size())) throw std::runtime_error("parameter: ids are not 0, 1, ...");
    index.parameters.push_back(
        {parameter.text(1), Json::parse(parameter.text(2)).get<std::vector<int64_t>>(), role_from(parameter.text(3))});
  }
  auto piece = database.prepare("SELECT parameter, kind, element_begin, elements, dtype, file, offset, bytes FROM piece ORDER BY rowid");
  while (piece.next()) {
    Piece entry{natural(piece.integer(0), "parameter"),
                piece.text(1),
                piece.integer(2),
                piece.integer(3),
                dtype_from(piece.text(4)),
                natural(piece.integer(5), "file"),
                natural(piece.integer(6), "offset")};
    if (entry.count < 0 || entry.count > (int64_t{1} << 58) || entry.bytes() != natural(piece.integer(7), "bytes")) {
      throw std::runtime_error(base::str("piece: got ", piece.integer(7), " bytes for ", entry.count, " elements"));
    }
    index.pieces.push_back(std::move(entry));
  }
  auto generator = database.prepare("SELECT rank, device, file, offset, bytes FROM generator ORDER BY rowid");
  while (generator.next()) {
    index.generators.push_back({static_cast<int>(generator.integer(0)), generator.text(1), natural(generator.integer(2), "file"),
                                natural(generator.integer(3), "offset"), natural(generator.integer(4), "bytes")});
  }
}

}  // namespace

std::vector<std::byte> write_index(const Index& index) {
  try {
    Database database;
    database.run("BEGIN");
    for (const auto& [name, sql] : kTables) database.run(sql);
    write_meta(database, index);
    write_rows(database, index);
    database.run("COMMIT");
    return database.serialize();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kCheckpointWrite, "checkpoint", base::str("index: ", error.what()));
  }
}

Index read_index(std::span<const std::byte> bytes, const std::string& source) {
  Index index;
  try {
    Database database(bytes);
    check_schema(database);
    read_meta(database, index);
    read_rows(database, index);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kCheckpointDamaged, "checkpoint", base::str(source, ": not an index: ", error.what()));
  }
  check_index(index, source);
  return index;
}

}  // namespace deepspeed::store
