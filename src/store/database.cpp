#include "store/database.h"

#include <cstring>
#include <stdexcept>

#include "base/text.h"

namespace deepspeed::store {
namespace {

constexpr int kStepsPerCount = 1000;
constexpr int64_t kStepsPerByte = 50, kFreeSteps = 2'000'000;

}  // namespace

void Database::fail() const { throw std::runtime_error(base::str("SQLite: ", sqlite3_errmsg(db_.get()))); }

Database::Database() {
  sqlite3* db = nullptr;
  const int result = sqlite3_open_v2(":memory:", &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_MEMORY | SQLITE_OPEN_NOMUTEX, nullptr);
  db_.reset(db);
  if (result != SQLITE_OK) fail();
}

Database::Database(std::span<const std::byte> bytes) : Database() {
  sqlite3_db_config(db_.get(), SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(db_.get(), SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(db_.get(), SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(db_.get(), SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
  steps_left_ = kFreeSteps + kStepsPerByte * static_cast<int64_t>(bytes.size());
  sqlite3_progress_handler(db_.get(), kStepsPerCount, count_steps, this);
  auto* data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data()));  // READONLY: it only reads
  const auto size = static_cast<sqlite3_int64>(bytes.size());
  if (sqlite3_deserialize(db_.get(), "main", data, size, size, SQLITE_DESERIALIZE_READONLY) != SQLITE_OK) fail();
  run("PRAGMA cell_size_check = ON");
}

int Database::count_steps(void* self) { return (static_cast<Database*>(self)->steps_left_ -= kStepsPerCount) < 0; }

void Database::run(const std::string& sql) {
  if (sqlite3_exec(db_.get(), sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) fail();
}

Statement Database::prepare(const std::string& sql) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(db_.get(), sql.c_str(), static_cast<int>(sql.size()), &statement, nullptr) != SQLITE_OK) fail();
  return {*this, statement};
}

std::vector<std::byte> Database::serialize() {
  sqlite3_int64 size = 0;
  const std::unique_ptr<unsigned char, void (*)(void*)> data(sqlite3_serialize(db_.get(), "main", &size, 0), sqlite3_free);
  if (!data) throw std::runtime_error("SQLite: no memory for the index");
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  std::memcpy(bytes.data(), data.get(), bytes.size());
  return bytes;
}

Statement& Statement::bind(int64_t value) {
  if (sqlite3_bind_int64(statement_.get(), ++bound_, value) != SQLITE_OK) database_->fail();
  return *this;
}

Statement& Statement::bind(std::string_view text) {
  if (sqlite3_bind_text64(statement_.get(), ++bound_, text.data(), text.size(), SQLITE_TRANSIENT, SQLITE_UTF8) != SQLITE_OK)
    database_->fail();
  return *this;
}

Statement& Statement::bind(std::span<const std::byte> blob) {
  // An empty span may have no address, which would bind NULL.
  const void* data = blob.empty() ? static_cast<const void*>("") : blob.data();
  if (sqlite3_bind_blob64(statement_.get(), ++bound_, data, blob.size(), SQLITE_TRANSIENT) != SQLITE_OK) database_->fail();
  return *this;
}

bool Statement::next() {
  const int result = sqlite3_step(statement_.get());
  if (result == SQLITE_ROW) return true;
  if (result != SQLITE_DONE) database_->fail();
  sqlite3_reset(statement_.get());
  bound_ = 0;
  return false;
}

void Statement::run() {
  while (next()) {
  }
}

void Statement::check_type(int column, int type) {
  const int found = sqlite3_column_type(statement_.get(), column);
  if (found != type) {
    throw std::runtime_error(base::str("column ", sqlite3_column_name(statement_.get(), column), ": got type ", found, ", allowed ", type));
  }
}

int64_t Statement::integer(int column) {
  check_type(column, SQLITE_INTEGER);
  return sqlite3_column_int64(statement_.get(), column);
}

std::string Statement::text(int column) {
  check_type(column, SQLITE_TEXT);
  const auto* data = reinterpret_cast<const char*>(sqlite3_column_text(statement_.get(), column));
  if (!data) throw std::runtime_error("SQLite: no memory for a text");
  return {data, static_cast<size_t>(sqlite3_column_bytes(statement_.get(), column))};
}

std::vector<std::byte> Statement::blob(int column) {
  check_type(column, SQLITE_BLOB);
  const auto* data = static_cast<const std::byte*>(sqlite3_column_blob(statement_.get(), column));
  const auto size = static_cast<size_t>(sqlite3_column_bytes(statement_.get(), column));
  if (size > 0 && !data) throw std::runtime_error("SQLite: no memory for a blob");
  return {data, data + size};
}

}  // namespace deepspeed::store
