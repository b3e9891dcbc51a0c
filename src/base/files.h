// Folders and small files, with errors that name path and reason.
#pragma once

#include <string>

namespace deepspeed::base {

// Creates the folder and those above it. Throws Error(kFile).
void make_directories(const std::string& path);
// Whole content. Throws Error(kFile).
std::string read_file(const std::string& path);
bool exists(const std::string& path);
// Makes the names inside a folder durable. Throws Error(kFile).
void sync_directory(const std::string& path);
// rename(2). Throws Error(kFile).
void rename_path(const std::string& from, const std::string& to);
// Swaps two names of one file system in one step. False, with nothing changed, where the file system cannot. Throws Error(kFile).
bool exchange_paths(const std::string& one, const std::string& other);
// Removes a file or tree; not being there is fine. Throws Error(kFile).
void remove_tree(const std::string& path);

}  // namespace deepspeed::base
