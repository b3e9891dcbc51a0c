// Text -> token file, by the Python script that holds the tokenizers package.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/log.h"
#include "base/text.h"
#include "deepspeed/data.h"
#include "formats/indexed_dataset.h"
#include "formats/output_file.h"

extern char** environ;

// The build tells where its interpreter and scripts are; the environment overrides both.
#ifndef DEEPSPEED_PYTHON_DEFAULT
#define DEEPSPEED_PYTHON_DEFAULT ""
#endif
#ifndef DEEPSPEED_SCRIPTS_DEFAULT
#define DEEPSPEED_SCRIPTS_DEFAULT ""
#endif

namespace deepspeed {
namespace {

namespace fs = std::filesystem;

// Beside the tokenizer, these decide what the script writes (which token ends a text).
constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
                                           "config.json"};

std::string from_environment(const char* name, const std::string& fallback) {
  return base::Environment::of_process().text(name).value_or(fallback);
}

std::string interpreter() {
  const std::string built_in = DEEPSPEED_PYTHON_DEFAULT;
  const bool usable = !built_in.empty() && ::access(built_in.c_str(), X_OK) == 0;
  return from_environment("DEEPSPEED_PYTHON", usable ? built_in : "python3");
}

std::string script_path() {
  const std::string folder = from_environment("DEEPSPEED_SCRIPTS_DIR", DEEPSPEED_SCRIPTS_DEFAULT);
  const std::string path = folder + "/tokenize_text.py";
  if (folder.empty() || !fs::is_regular_file(path)) {
    throw Error(
        ErrorCode::kEnvironment, "data",
        base::str("looking for tokenize_text.py: got none in \"", folder, "\", allowed a folder with it (set DEEPSPEED_SCRIPTS_DIR)"));
  }
  return path;
}

// Runs a program without a shell and returns its exit status. Its output goes to stderr: stdout is for data.
int run(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  pid_t child = 0;
  const int failure = ::posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failure != 0) {
    throw Error(ErrorCode::kEnvironment, "data",
                base::str("starting ", command[0], ": ", std::strerror(failure), " (set DEEPSPEED_PYTHON to a Python interpreter)"));
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw Error(ErrorCode::kEnvironment, "data", base::str("waiting for ", command[0], ": ", std::strerror(errno)));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void tokenize(const std::vector<std::string>& paths, const std::string& model_directory, const std::string& prefix) {
  std::vector<std::string> command = {interpreter(), script_path(), "--tokenizer", model_directory + "/tokenizer.json",
                                      "--output",    prefix,        "--"};
  command.insert(command.end(), paths.begin(), paths.end());
  const int status = run(command);
  if (status == 0 && formats::IndexedDataset::exists(prefix)) return;
  // The script's own codes: 1 bad input, 4 a package is missing. Its message is on stderr already.
  const bool installation = status == 4 || status == 127;
  throw Error(
      installation ? ErrorCode::kEnvironment : ErrorCode::kDataFormat, "data",
      base::str("tokenising with ", command[0], " ", command[1], ": got exit status ", status, ", allowed 0 (its message is above)"));
}

// FNV-1a, 64 bits.
class Fingerprint {
 public:
  void add(std::string_view bytes) {
    for (const char byte : bytes) value_ = (value_ ^ static_cast<unsigned char>(byte)) * 0x100000001B3u;
    value_ = (value_ ^ 0x1FFu) * 0x100000001B3u;  // so that "a", "b" and "ab" differ
  }
  void add_file(const std::string& path) {
    const formats::MappedFile file(path);
    add({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
  }
  std::string text() const {
    char out[17];
    std::snprintf(out, sizeof out, "%016llx", static_cast<unsigned long long>(value_));
    return out;
  }

 private:
  uint64_t value_ = 0xCBF29CE484222325u;
};

std::string cache_key(const std::vector<std::string>& paths, const std::string& model_directory) {
  Fingerprint print;
  for (const char* name : kTokenizerFiles) {
    const std::string path = model_directory + "/" + name;
    print.add(name);
    if (fs::exists(path)) print.add_file(path);
  }
  for (const std::string& path : paths) {
    print.add(fs::canonical(path).string());
    print.add(std::to_string(fs::file_size(path)));
    print.add(std::to_string(fs::last_write_time(path).time_since_epoch().count()));
  }
  return print.text();
}

// The prefix that `path` names directly, or "".
std::string direct_prefix(const std::string& path) {
  if (formats::IndexedDataset::exists(path)) return path;
  const fs::path stem = fs::path(path).replace_extension();
  const bool named = path.ends_with(".bin") || path.ends_with(".idx");
  return named && formats::IndexedDataset::exists(stem.string()) ? stem.string() : "";
}

}  // namespace

std::string ensure_tokenized(const std::vector<std::string>& paths, const std::string& model_directory,
                             const std::string& cache_directory) {
  if (paths.empty()) throw Error(ErrorCode::kUsage, "data", "training data: got no file, allowed one or more");
  if (paths.size() == 1) {
    if (std::string prefix = direct_prefix(paths[0]); !prefix.empty()) return prefix;
  }
  for (const std::string& path : paths) {
    if (!fs::is_regular_file(path)) {
      throw Error(ErrorCode::kFile, "data",
                  base::str("training data: got ", path, ", allowed a file of text, or one prefix of a .bin and .idx pair"));
    }
  }
  if (!fs::is_regular_file(model_directory + "/tokenizer.json")) {
    throw Error(ErrorCode::kFile, "data",
                base::str("tokenising: got no tokenizer.json in ", model_directory, ", allowed a model directory with one"));
  }
  try {
    fs::create_directories(cache_directory);
    const std::string prefix = cache_directory + "/tokens-" + cache_key(paths, model_directory);
    if (formats::IndexedDataset::exists(prefix) && fs::exists(prefix + ".meta.json")) return prefix;
    base::log_info("tokenising ", paths.size(), paths.size() == 1 ? " file" : " files", " into ", prefix);
    tokenize(paths, model_directory, prefix);
    return prefix;
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorCode::kFile, "data", base::str("tokenising into ", cache_directory, ": ", error.what()));
  }
}

std::vector<int64_t> encode_prompt(const std::string& text, const std::string& model_directory) {
  if (text.empty()) return {};
  std::string folder = (fs::temp_directory_path() / "deepspeed-prompt-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr)
    throw Error(ErrorCode::kFile, "data", base::str("creating ", folder, ": ", std::strerror(errno)));
  const std::shared_ptr<void> cleanup(nullptr, [&](void*) {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  });
  {
    formats::OutputFile file(folder + "/prompt.txt");
    file.write(text);
    file.commit(false);
  }
  const std::string prefix = folder + "/tokens";
  tokenize({folder + "/prompt.txt"}, model_directory, prefix);
  const formats::IndexedDataset dataset(prefix);
  std::vector<int64_t> tokens(static_cast<size_t>(dataset.tokens()));
  dataset.read(0, tokens);
  // A document ends with the end-of-text token; a prompt goes on.
  const formats::MappedFile meta_file(prefix + ".meta.json");
  const auto* meta_text = reinterpret_cast<const char*>(meta_file.bytes().data());
  const auto meta = nlohmann::json::parse(meta_text, meta_text + meta_file.bytes().size(), nullptr, false);
  const auto end = meta.is_object() ? meta.find("eos_token_id") : meta.end();
  if (meta.is_object() && end != meta.end() && end->is_number_integer() && !tokens.empty() && tokens.back() == end->get<int64_t>())
    tokens.pop_back();
  return tokens;
}

}  // namespace deepspeed
