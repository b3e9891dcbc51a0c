// The little of SQLite that an index needs: a database in memory, statements, columns with checked types.
#pragma once

#include <sqlite3.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deepspeed::store {

class Statement;

// Throws std::runtime_error with SQLite's own message, as do statements; callers know which file it is about.
class Database {
 public:
  Database();  // empty
  // Reads `bytes`, which must outlive the object. Safe on any input: nothing in it can run, and reading ends after a number of steps that is bounded by its size.
  explicit Database(std::span<const std::byte> bytes);

  void run(const std::string& sql);
  Statement prepare(const std::string& sql);
  std::vector<std::byte> serialize();

 private:
  friend class Statement;
  struct Close {
    void operator()(sqlite3* db) const { sqlite3_close_v2(db); }
  };
  [[noreturn]] void fail() const;
  static int count_steps(void* self);

  std::unique_ptr<sqlite3, Close> db_;
  int64_t steps_left_ = 0;
};

class Statement {
 public:
  Statement& bind(int64_t value);
  Statement& bind(std::string_view text);
  Statement& bind(std::span<const std::byte> blob);
  // False: no more rows. After that the statement can be bound again.
  bool next();
  void run();  // a statement without rows

  // Columns of the present row, from 0. An error when the type is another.
  int64_t integer(int column);
  std::string text(int column);
  std::vector<std::byte> blob(int column);

 private:
  friend class Database;
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  Statement(Database& database, sqlite3_stmt* statement) : database_(&database), statement_(statement) {}
  void check_type(int column, int type);

  Database* database_;
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  int bound_ = 0;
};

}  // namespace deepspeed::store
