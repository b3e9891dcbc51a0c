// A file system in memory that can fail, tear or end at any of its operations, and then lose what was not synced.
//
//   MemoryDisk disk;  disk.plan({.at = 7, .what = Fault::kDeath});  ... a save ...      // Died is thrown at operation 7 and at all later ones
//   MemoryDisk after = disk.after_power_loss(seed);                                      // what a machine would find when it comes back
//
// Names: changes of folders reach the disk in their order, so that a power loss keeps a first part of those since the last sync of a folder (of any folder: one
// journal, as in ext4, XFS and btrfs). Data: of a file that was not synced any first part is there, followed by nothing or by zeros.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/text.h"
#include "deepspeed/error.h"
#include "store/file_system.h"

namespace deepspeed::testing {

enum class Fault {
  kNone,
  kDeath,      // the process ends before the operation
  kTornDeath,  // in the middle of it: half of a write is done; other operations are as kDeath
  kNoSpace,    // ENOSPC, half of a write is done; the process goes on, and nothing can be written any more
  kIoError,    // EIO at this operation; the process goes on. A file whose sync failed has lost its data, though later syncs succeed
};

// Not an Error and no std::exception: nobody catches a death.
struct Died {};

class MemoryDisk final : public store::FileSystem {
 public:
  struct Plan {
    int64_t at = -1;  // number of the operation, from 0
    Fault what = Fault::kNone;
  };

  void plan(Plan plan) {
    plan_ = plan;
    operations_ = 0;
    full_ = dead_ = false;
  }
  int64_t operations() const { return operations_; }  // that change something, since plan()
  bool fired() const { return plan_.what != Fault::kNone && operations_ > plan_.at; }
  const std::string& fired_at() const { return fired_at_; }

  // The machine goes on after the process has ended.
  MemoryDisk after_death() const {
    MemoryDisk other;
    other.settle(names_);
    return other;
  }

  MemoryDisk after_power_loss(uint64_t seed) const {
    std::mt19937_64 random(seed);
    Names names = durable_names_;
    const size_t kept = seed == 0 ? 0 : seed == 1 ? journal_.size() : random() % (journal_.size() + 1);
    for (size_t i = 0; i < kept; ++i) journal_[i](names);
    for (auto& [name, node] : names) {
      if (node.folder || node.file->synced == node.file->bytes.size()) continue;
      auto lost = std::make_shared<File>(*node.file);
      const size_t rest = lost->bytes.size() - lost->synced;
      const size_t there = seed == 0 ? 0 : random() % (rest + 1);
      const bool zeros = random() % 2 == 0;
      for (size_t i = lost->synced + there; i < lost->bytes.size(); ++i) lost->bytes[i] = std::byte{0};
      if (!zeros) lost->bytes.resize(lost->synced + there);
      node.file = std::move(lost);
    }
    MemoryDisk other;
    other.settle(names);
    return other;
  }

  // The content of a file, to look at or to damage.
  std::vector<std::byte>& content(const std::string& path) { return file_at(path)->bytes; }
  std::vector<std::string> all_files() const {
    std::vector<std::string> files;
    for (const auto& [name, node] : names_) {
      if (!node.folder) files.push_back(name);
    }
    return files;
  }

  std::unique_ptr<store::FileWriter> create(const std::string& path) override {
    begin("create " + path);
    if (names_.count(path)) fail("creating", path, "File exists");
    require_folder(path);
    auto file = std::make_shared<File>();
    change([path, file](Names& names) { names[path] = {false, file}; });
    return std::make_unique<Writer>(*this, file, path);
  }

  std::unique_ptr<const store::FileView> open(const std::string& path) override {
    struct View final : store::FileView {
      std::shared_ptr<File> file;
      std::span<const std::byte> bytes() const override { return file->bytes; }
    };
    auto view = std::make_unique<View>();
    view->file = file_at(path);
    return view;
  }

  bool exists(const std::string& path) override { return names_.count(path) > 0; }

  std::vector<std::string> list(const std::string& folder) override {
    std::vector<std::string> names;
    const std::string prefix = folder + "/";
    for (auto item = names_.lower_bound(prefix); item != names_.end() && item->first.starts_with(prefix); ++item) {
      const std::string name = item->first.substr(prefix.size());
      if (name.find('/') == std::string::npos) names.push_back(name);
    }
    return names;
  }

  void make_directory(const std::string& path) override {
    begin("make folder " + path);
    const auto found = names_.find(path);
    if (found != names_.end() && found->second.folder) return;
    if (found != names_.end()) fail("making folder", path, "File exists");
    require_folder(path);
    change([path](Names& names) { names[path] = {true, nullptr}; });
  }

  void sync_directory(const std::string& path) override {
    begin("sync folder " + path);
    durable_names_ = names_;
    journal_.clear();
  }

  void rename(const std::string& from, const std::string& to) override {
    begin("rename " + from);
    if (!names_.count(from)) fail("renaming", from, "No such file or directory");
    const auto target = names_.find(to);
    if (target != names_.end() && target->second.folder) fail("renaming", to, "Directory not empty");
    change([from, to](Names& names) { move(names, from, to); });
  }

  bool exchange(const std::string& one, const std::string& other) override {
    begin("exchange " + one);
    if (!can_exchange) return false;
    change([one, other](Names& names) {
      move(names, one, "exchanged");
      move(names, other, one);
      move(names, "exchanged", other);
    });
    return true;
  }

  // As on a real disk, file after file.
  void remove(const std::string& path) override {
    if (dead_) return;  // destructors of what is no more
    std::vector<std::string> names;
    for (const auto& [name, node] : names_) {
      if (name == path || name.starts_with(path + "/")) names.push_back(name);
    }
    for (auto name = names.rbegin(); name != names.rend(); ++name) {
      begin("remove " + *name, /*needs_space=*/false);
      change([name = *name](Names& all) { all.erase(name); });
    }
  }

  std::unique_ptr<store::FileLock> lock(const std::string& path) override {
    begin("lock " + path);
    struct Lock final : store::FileLock {
      std::shared_ptr<std::set<std::string>> held;
      std::string path;
      ~Lock() override { held->erase(path); }
    };
    if (!names_.count(path)) {
      require_folder(path);
      change([path, file = std::make_shared<File>()](Names& names) { names[path] = {false, file}; });
    }
    if (!locks_->insert(path).second) return nullptr;
    auto lock = std::make_unique<Lock>();
    lock->held = locks_;
    lock->path = path;
    return lock;
  }

  bool can_exchange = true;

 private:
  struct File {
    std::vector<std::byte> bytes;
    size_t synced = 0;  // bytes that have reached the disk
  };
  struct Node {
    bool folder = false;
    std::shared_ptr<File> file;
  };
  using Names = std::map<std::string, Node>;

  class Writer final : public store::FileWriter {
   public:
    Writer(MemoryDisk& disk, std::shared_ptr<File> file, std::string path) : disk_(disk), file_(std::move(file)), path_(std::move(path)) {}
    void append(std::span<const std::byte> data) override {
      disk_.begin("write " + path_, true, [&] { add(data.first(data.size() / 2)); });
      add(data);
    }
    void sync() override {
      // What the kernel could not write it forgets.
      disk_.begin("sync " + path_, true, [&] { lost_ = true; });
      if (!lost_) file_->synced = file_->bytes.size();
    }
    void close() override { disk_.begin("close " + path_, false); }

   private:
    void add(std::span<const std::byte> data) { file_->bytes.insert(file_->bytes.end(), data.begin(), data.end()); }
    MemoryDisk& disk_;
    std::shared_ptr<File> file_;
    std::string path_;
    bool lost_ = false;
  };

  static void move(Names& names, const std::string& from, const std::string& to) {
    Names moved;
    for (const auto& [name, node] : names) {
      if (name == from) moved[to] = node;
      if (name.starts_with(from + "/")) moved[to + name.substr(from.size())] = node;
    }
    std::erase_if(names, [&](const auto& item) { return item.first == from || item.first.starts_with(from + "/"); });
    for (auto& item : moved) names[item.first] = item.second;
  }

  // The start: these names, with files of their own, all of it synced.
  void settle(const Names& names) {
    names_ = names;
    for (auto& [name, node] : names_) {
      if (node.folder) continue;
      node.file = std::make_shared<File>(*node.file);
      node.file->synced = node.file->bytes.size();
    }
    durable_names_ = names_;
  }

  void change(std::function<void(Names&)> call) {
    call(names_);
    journal_.push_back(std::move(call));
  }

  // Counts an operation, and lets the planned fault happen. `half`: what a torn one has done.
  void begin(const std::string& what, bool needs_space = true, const std::function<void()>& half = {}) {
    if (dead_) throw Died();
    const int64_t number = operations_++;
    if (full_ && needs_space) fail(what.c_str(), "", "No space left on device");
    if (number != plan_.at || plan_.what == Fault::kNone) return;
    fired_at_ = what;
    switch (plan_.what) {
      case Fault::kTornDeath:
        if (half) half();
        [[fallthrough]];
      case Fault::kDeath:
        dead_ = true;
        throw Died();
      case Fault::kNoSpace:
        if (!needs_space) return;
        full_ = true;
        if (half) half();
        fail(what.c_str(), "", "No space left on device");
      case Fault::kIoError:
        if (half) half();
        fail(what.c_str(), "", "Input/output error");
      case Fault::kNone:
        return;
    }
  }

  [[noreturn]] static void fail(const char* what, const std::string& path, const char* why) {
    throw Error(ErrorCode::kFile, "file", base::str(what, " ", path, ": ", why));
  }

  void require_folder(const std::string& path) {
    const size_t slash = path.find_last_of('/');
    if (slash == std::string::npos || slash == 0) return;
    const auto found = names_.find(path.substr(0, slash));
    if (found == names_.end() || !found->second.folder) fail("opening", path, "No such file or directory");
  }

  std::shared_ptr<File> file_at(const std::string& path) const {
    const auto found = names_.find(path);
    if (found == names_.end() || found->second.folder)
      fail("opening", path, found == names_.end() ? "No such file or directory" : "Is a directory");
    return found->second.file;
  }

  Names names_, durable_names_;
  std::vector<std::function<void(Names&)>> journal_;  // changes of names since the last sync of a folder
  std::shared_ptr<std::set<std::string>> locks_ = std::make_shared<std::set<std::string>>();
  Plan plan_;
  int64_t operations_ = 0;
  std::string fired_at_;
  bool full_ = false, dead_ = false;
};

}  // namespace deepspeed::testing
