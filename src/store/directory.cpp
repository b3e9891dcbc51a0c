#include "store/directory.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "deepspeed/error.h"
#include "store/checkpoint.h"
#include "store/save_folder.h"

namespace deepspeed::store {
namespace {

using Json = nlohmann::ordered_json;

uint64_t size_of(FileSystem& files, const std::string& path) {
  uint64_t bytes = 0;
  for (const auto& name : files.list(path)) {
    try {
      bytes += files.open(path + "/" + name)->bytes().size();
    } catch (const Error&) {
      // A folder, or not readable: not counted.
    }
  }
  return bytes;
}

void look_inside(FileSystem& files, const std::string& path, Listed& listed) {
  try {
    if (listed.kind == Kind::kNative) {
      const Checkpoint checkpoint(files, path);
      listed.world_size = checkpoint.index().world_size;
      listed.global_steps = checkpoint.global_steps();
    } else if (listed.kind == Kind::kNativeJson) {
      const auto view = files.open(path + "/index.json");
      const auto* begin = reinterpret_cast<const char*>(view->bytes().data());
      const Json index = Json::parse(begin, begin + view->bytes().size());
      listed.world_size = index.at("world_size");
      listed.global_steps = index.at("run").at("global_steps");
    } else if (listed.tag.rfind("global_step", 0) == 0) {
      listed.global_steps = std::strtoll(listed.tag.c_str() + 11, nullptr, 10);
    }
  } catch (const std::exception& error) {
    listed.problem = error.what();
  }
}

}  // namespace

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::kNative:
      return "native";
    case Kind::kNativeJson:
      return "native, version 1";
    case Kind::kZero:
      return "DeepSpeed ZeRO";
    case Kind::kUniversal:
      return "DeepSpeed Universal";
  }
  return "?";
}

std::optional<Kind> kind_of_checkpoint(FileSystem& files, const std::string& path) {
  const auto names = files.list(path);
  const auto any = [&](auto&& test) { return std::any_of(names.begin(), names.end(), test); };
  const auto is = [](const char* wanted) { return [wanted](const std::string& name) { return name == wanted; }; };
  if (any(is(kIndexFile)) || any(is(kChecksumsFile))) return Kind::kNative;
  if (any(is("index.json"))) return Kind::kNativeJson;
  if (any(is("zero")) && any([](const std::string& name) { return name.ends_with("_model_states.pt"); })) return Kind::kUniversal;
  if (any([](const std::string& name) { return name.ends_with("_states.pt"); })) return Kind::kZero;
  // The files of ranks without an index: damaged, but ours.
  if (any([](const std::string& name) { return name.rfind("rank_", 0) == 0 && name.ends_with(".safetensors"); })) return Kind::kNative;
  return std::nullopt;
}

std::string describe_tags(FileSystem& files, const std::string& directory) {
  std::vector<std::string> tags;
  for (const auto& listed : list_checkpoints(files, directory)) tags.push_back(listed.tag);
  if (tags.empty()) return base::str("a checkpoint folder; ", directory, " holds none");
  constexpr size_t kShown = 8;
  const bool cut = tags.size() > kShown;
  if (cut) tags.erase(tags.begin(), tags.end() - kShown);
  return base::str("one of those in ", directory, ": ", cut ? "..., " : "", base::join(tags, ", "));
}

std::vector<Listed> list_checkpoints(FileSystem& files, const std::string& directory) {
  std::vector<Listed> all;
  for (const auto& name : files.list(directory)) {
    if (name[0] == '.') continue;
    Listed listed;
    listed.tag = name;
    const std::string path = directory + "/" + name;
    const auto kind = kind_of_checkpoint(files, path);
    if (!kind) continue;
    listed.kind = *kind;
    listed.bytes = size_of(files, path);
    look_inside(files, path, listed);
    all.push_back(std::move(listed));
  }
  std::stable_sort(all.begin(), all.end(), [](const Listed& a, const Listed& b) { return a.global_steps < b.global_steps; });
  return all;
}

std::string latest_tag(FileSystem& files, const std::string& directory, const std::string& file) {
  const std::string path = directory + "/" + file;
  if (!files.exists(path)) return "";
  const auto view = files.open(path);
  std::string tag(reinterpret_cast<const char*>(view->bytes().data()), std::min<size_t>(view->bytes().size(), 4096));
  while (!tag.empty() && (tag.back() == '\n' || tag.back() == '\r' || tag.back() == ' ')) tag.pop_back();
  return tag;
}

std::vector<std::string> prune(FileSystem& files, const std::string& directory, int keep, bool dry_run) {
  if (keep < 1) throw Error(ErrorCode::kUsage, "checkpoint", base::str("keep: got ", keep, ", allowed 1 or more"));
  std::vector<Listed> whole;
  for (auto& listed : list_checkpoints(files, directory)) {
    if (listed.kind == Kind::kNative && listed.problem.empty()) whole.push_back(std::move(listed));
  }
  const std::string latest = latest_tag(files, directory);
  std::vector<std::string> removed;
  for (size_t i = 0; i + static_cast<size_t>(keep) < whole.size(); ++i) {
    if (whole[i].tag == latest) continue;
    removed.push_back(whole[i].tag);
    if (dry_run) continue;
    // Out of sight first, in one step; then bit by bit.
    const std::string aside = temporary_folder(directory, "removed." + whole[i].tag);
    files.remove(aside);
    files.rename(directory + "/" + whole[i].tag, aside);
    files.sync_directory(directory);
    files.remove(aside);
  }
  return removed;
}

}  // namespace deepspeed::store
