#include "checkpoint/load.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <unordered_map>

#include "base/files.h"
#include "base/text.h"
#include "checkpoint/source.h"
#include "comm/agreement.h"
#include "deepspeed/error.h"

namespace deepspeed::checkpoint {
namespace {

// Whether each state of this run's optimizer is there, and no other.
bool same_states(const std::vector<std::string>& theirs, const std::vector<std::vector<std::string>>& ours) {
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return std::all_of(theirs.begin(), theirs.end(),
                     [&](const std::string& name) {
                       return std::any_of(ours.begin(), ours.end(), [&](const auto& aliases) { return has(aliases, name); });
                     }) &&
         std::all_of(ours.begin(), ours.end(), [&](const auto& aliases) {
           return std::any_of(aliases.begin(), aliases.end(), [&](const std::string& name) { return has(theirs, name); });
         });
}

void compare(const Source& source, const Image& image, const std::string& path) {
  std::vector<std::string> problems;
  if (!same_states(source.state_names(), image.state_aliases)) {
    problems.push_back(base::str("optimizer states: got [", base::join(source.state_names(), ", "), "] there, allowed [",
                                 base::join(image.state_names, ", "), "], those of this run's optimizer"));
  }
  const auto& saved = source.parameters();
  size_t known = 0;
  for (const auto& unit : image.units) {
    for (const auto& slot : unit.layout->slots()) {
      const auto found = saved.find(slot.name);
      if (found == saved.end()) {
        problems.push_back(base::str(slot.name, " is not in the checkpoint"));
        continue;
      }
      ++known;
      if (found->second.shape != slot.shape) problems.push_back(base::str(slot.name, " has another shape there"));
      if (unit.trained && !found->second.trained) {
        problems.push_back(base::str(slot.name, " was frozen there and has no optimizer state"));
      }
    }
  }
  if (known < saved.size()) {
    std::unordered_map<std::string, bool> ours;
    for (const auto& unit : image.units) {
      for (const auto& slot : unit.layout->slots()) ours[slot.name] = true;
    }
    for (const auto& [name, parameter] : saved) {
      if (!ours.count(name)) problems.push_back(base::str(name, " is not in the model"));
    }
  }
  if (problems.empty()) return;
  std::sort(problems.begin(), problems.end());
  const size_t shown = std::min<size_t>(problems.size(), 10);
  std::string list = base::join({problems.begin(), problems.begin() + static_cast<ptrdiff_t>(shown)}, "; ");
  if (problems.size() > shown) list += base::str("; and ", problems.size() - shown, " more");
  throw Error(ErrorCode::kCheckpointMismatch, "checkpoint", base::str(path, ": model and checkpoint differ: ", list));
}

// `state`: the names of one; nullptr: the parameters' values.
void fill(Source& source, const std::vector<std::string>* state, const UnitImage& unit, int rank, at::Tensor& target) {
  const auto range = unit.layout->shard(rank);
  auto values = at::empty({target.numel()}, at::TensorOptions().dtype(at::kFloat));
  auto* out = values.mutable_data_ptr<float>();
  std::fill_n(out, values.numel(), 0.0f);
  for (const auto& slot : unit.layout->slots()) {
    const int64_t begin = std::max(slot.offset, range.begin), end = std::min(slot.offset + slot.elements, range.end);
    if (begin >= end) continue;
    float* target_of_part = out + begin - range.begin;
    if (state) {
      source.read_state(slot.name, *state, begin - slot.offset, end - begin, target_of_part);
    } else {
      source.read_values(slot.name, begin - slot.offset, end - begin, target_of_part);
    }
  }
  target.copy_(values);
}

void restore_generator(Source& source, int rank) {
  const auto bytes = source.generator(rank);
  if (bytes.empty()) return;
  auto state = at::empty({static_cast<int64_t>(bytes.size())}, at::TensorOptions().dtype(at::kByte));
  std::memcpy(state.mutable_data_ptr(), bytes.data(), bytes.size());
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

// What DIR/latest, or the real DeepSpeed's latest_universal, says.
std::string latest_tag(const std::string& directory, bool universal) {
  for (const char* name : {universal ? "latest_universal" : "latest", universal ? "latest" : "latest_universal"}) {
    const std::string path = directory + "/" + name;
    if (!base::exists(path)) continue;
    std::string tag = base::read_file(path);
    while (!tag.empty() && (tag.back() == '\n' || tag.back() == ' ')) tag.pop_back();
    return tag;
  }
  throw Error(ErrorCode::kCheckpointMissing, "checkpoint",
              base::str("load: got no ", directory, "/latest, allowed a folder that holds checkpoints, or a tag"));
}

}  // namespace

Loaded load(Communicator& communicator, const std::string& directory, const std::string& tag, bool universal, Image& image,
            const at::Tensor& device_probe) {
  at::NoGradGuard no_grad;
  Loaded loaded;
  std::string error;
  ErrorCode code = ErrorCode::kCheckpointDamaged;
  std::unique_ptr<Source> source;
  try {
    const std::string chosen = tag.empty() ? latest_tag(directory, universal) : tag;
    loaded.path = directory + "/" + chosen;
    source = base::exists(loaded.path + "/index.json") || !base::exists(loaded.path) ? open_native(loaded.path)
                                                                                     : open_deepspeed(directory, chosen);
    compare(*source, image, loaded.path);
    loaded.run_json = source->run_json();
    loaded.client_json = source->client_json();
    loaded.world_size = source->world_size();
  } catch (const Error& failure) {
    error = failure.what();
    code = failure.code();
  }
  comm::agree_on_success(communicator, error, code, "checkpoint", "load " + directory, device_probe);
  try {
    for (auto& unit : image.units) {
      fill(*source, nullptr, unit, communicator.rank(), unit.parameter);
      for (size_t i = 0; i < unit.states.size(); ++i) {
        fill(*source, &image.state_aliases[i], unit, communicator.rank(), unit.states[i]);
      }
    }
    if (loaded.world_size == communicator.size()) restore_generator(*source, communicator.rank());
  } catch (const Error& failure) {
    error = failure.what();
  }
  comm::agree_on_success(communicator, error, ErrorCode::kCheckpointDamaged, "checkpoint", "load " + loaded.path, device_probe);
  return loaded;
}

}  // namespace deepspeed::checkpoint
