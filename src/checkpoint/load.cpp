#include "checkpoint/load.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <unordered_map>

#include "base/log.h"
#include "base/text.h"
#include "checkpoint/generators.h"
#include "checkpoint/types.h"
#include "comm/agreement.h"
#include "deepspeed/error.h"
#include "store/directory.h"
#include "store/source.h"

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

void compare(const store::Source& source, const Image& image, const std::string& path) {
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
  for (const auto& buffer : image.buffers) {
    const auto found = source.buffers().find(buffer.name);
    if (found != source.buffers().end() && found->second.shape != buffer.tensor.sizes().vec()) {
      problems.push_back(base::str(buffer.name, " (a buffer) has another shape there"));
    }
  }
  if (problems.empty()) return;
  std::sort(problems.begin(), problems.end());
  const size_t shown = std::min<size_t>(problems.size(), 10);
  std::string list = base::join({problems.begin(), problems.begin() + static_cast<ptrdiff_t>(shown)}, "; ");
  if (problems.size() > shown) list += base::str("; and ", problems.size() - shown, " more");
  throw Error(ErrorCode::kCheckpointMismatch, "checkpoint", base::str(path, ": model and checkpoint differ: ", list));
}

// use(slot, begin, count, at): the parts of parameters in a rank's shard of a unit; `at` is their first element of the shard.
template <typename Use>
void each_part(const UnitImage& unit, int rank, Use&& use) {
  const auto range = unit.layout->shard(rank);
  for (const auto& slot : unit.layout->slots()) {
    const int64_t begin = std::max(slot.offset, range.begin), end = std::min(slot.offset + slot.elements, range.end);
    if (begin < end) use(slot, begin - slot.offset, end - begin, begin - range.begin);
  }
}

// Everything that fill() will read.
void verify(store::Source& source, const Image& image, int rank, int ranks) {
  for (const auto& unit : image.units) {
    each_part(unit, rank, [&](const tensor::Slot& slot, int64_t begin, int64_t count, int64_t) {
      source.verify_values(slot.name, begin, count);
      for (size_t i = 0; i < unit.states.size(); ++i) source.verify_state(slot.name, image.state_aliases[i], begin, count);
    });
  }
  source.verify_rest(rank, ranks);
}

// `state`: the names of one; nullptr: the parameters' values.
void fill(store::Source& source, const std::vector<std::string>* state, const UnitImage& unit, int rank, at::Tensor& target) {
  // Host memory of the right type is filled where it lies.
  const bool direct = target.is_cpu() && target.scalar_type() == at::kFloat && target.is_contiguous();
  auto values = direct ? target : at::empty({target.numel()}, at::TensorOptions().dtype(at::kFloat));
  auto* out = values.mutable_data_ptr<float>();
  std::fill_n(out, values.numel(), 0.0f);
  each_part(unit, rank, [&](const tensor::Slot& slot, int64_t begin, int64_t count, int64_t at) {
    if (state) {
      source.read_state(slot.name, *state, begin, count, out + at);
    } else {
      source.read_values(slot.name, begin, count, out + at);
    }
  });
  if (!direct) target.copy_(values);
}

void fill_buffers(store::Source& source, Image& image, bool warns, const std::string& path) {
  std::vector<std::string> kept, unknown;
  for (auto& buffer : image.buffers) {
    const auto found = source.buffers().find(buffer.name);
    if (found == source.buffers().end()) {
      kept.push_back(buffer.name);
      continue;
    }
    auto bytes = source.read_buffer(buffer.name);
    buffer.tensor.copy_(at::from_blob(bytes.data(), buffer.tensor.sizes(), at::TensorOptions().dtype(scalar_type_of(found->second.dtype))));
  }
  for (const auto& [name, buffer] : source.buffers()) {
    if (std::none_of(image.buffers.begin(), image.buffers.end(), [&, &wanted = name](const auto& ours) { return ours.name == wanted; }))
      unknown.push_back(name);
  }
  if (!warns) return;
  if (!kept.empty()) base::log_warning(path, ": has no buffers ", base::join(kept, ", "), ": the module's stay as they are");
  if (!unknown.empty()) base::log_warning(path, ": buffers ", base::join(unknown, ", "), " are not in the model and are left out");
}

// What DIR/latest, or the real DeepSpeed's latest_universal, says.
std::string latest_of(const std::string& directory, bool universal) {
  for (const char* name : {universal ? "latest_universal" : "latest", universal ? "latest" : "latest_universal"}) {
    const std::string tag = store::latest_tag(store::disk(), directory, name);
    if (!tag.empty()) return tag;
  }
  throw Error(ErrorCode::kCheckpointMissing, "checkpoint",
              base::str("load: got no ", directory, "/latest, allowed a tag, ", store::describe_tags(store::disk(), directory)));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Opens DIR/TAG and looks at all that this rank will read. Throws as load() does.
std::unique_ptr<store::Source> open_verified(const std::string& directory, const std::string& tag, const Image& image, int rank,
                                             int ranks) {
  auto source = store::open_source(store::disk(), directory, tag);
  compare(*source, image, directory + "/" + tag);
  verify(*source, image, rank, ranks);
  return source;
}

bool may_fall_back(const Error& error) {
  return error.code() == ErrorCode::kCheckpointDamaged || error.code() == ErrorCode::kCheckpointMissing ||
         error.code() == ErrorCode::kFile || error.code() == ErrorCode::kModelFormat;
}

// A crash between a checkpoint's last rename and that of `latest`, or somebody's own choice: only the user knows.
void warn_of_newer(const std::vector<store::Listed>& all, const std::string& directory, const std::string& latest) {
  if (all.empty() || all.back().tag == latest || !all.back().problem.empty()) return;
  const auto named = std::find_if(all.begin(), all.end(), [&](const auto& listed) { return listed.tag == latest; });
  if (named == all.end() || named->global_steps >= all.back().global_steps) return;
  base::log_warning(directory, "/latest names ", latest, ", though ", all.back().tag, " is newer; give its tag to load that one");
}

// The tags to try, one a line, rank 0's view.
std::string candidates(const LoadRequest& request, std::string* trouble) {
  std::vector<std::string> tags;
  try {
    tags.push_back(request.tag.empty() ? latest_of(request.directory, request.universal) : request.tag);
  } catch (const Error& error) {
    *trouble = error.what();
  }
  const auto all = store::list_checkpoints(store::disk(), request.directory);
  if (request.tag.empty() && !tags.empty()) warn_of_newer(all, request.directory, tags[0]);
  if (request.fallback) {
    for (auto listed = all.rbegin(); listed != all.rend(); ++listed) {
      if (std::find(tags.begin(), tags.end(), listed->tag) == tags.end()) tags.push_back(listed->tag);
    }
  }
  return base::join(tags, "\n");
}

}  // namespace

Loaded load(Communicator& communicator, const LoadRequest& request, Image& image, const at::Tensor& device_probe) {
  at::NoGradGuard no_grad;
  const int rank = communicator.rank(), ranks = communicator.size();
  const std::string what = "load " + request.directory;
  std::string trouble, list;
  if (rank == 0) list = candidates(request, &trouble);
  list = comm::broadcast_text(communicator, list, 0, "checkpoints to load", device_probe);
  if (list.empty()) comm::agree_on_success(communicator, trouble, ErrorCode::kCheckpointMissing, "checkpoint", what, device_probe);

  Loaded loaded;
  std::unique_ptr<store::Source> source;
  for (const std::string& tag : lines_of(list)) {
    loaded.path = request.directory + "/" + tag;
    std::string error;
    ErrorCode code = ErrorCode::kCheckpointDamaged;
    try {
      source = open_verified(request.directory, tag, image, rank, ranks);
    } catch (const Error& failure) {
      error = failure.what();
      code = failure.code();
    }
    try {
      comm::agree_on_success(communicator, error, code, "checkpoint", what, device_probe);
      break;
    } catch (const Error& failure) {
      source.reset();
      if (!request.fallback || !may_fall_back(failure)) throw;
      if (loaded.damage.empty()) loaded.damage = failure.what();
      if (rank == 0) base::log_warning(failure.what(), "; looking for an older checkpoint");
    }
  }
  if (!source) {
    throw Error(ErrorCode::kCheckpointMissing, "checkpoint",
                base::str(what, ": got no whole checkpoint, allowed one at least: ", loaded.damage));
  }
  loaded.run_json = source->run_json();
  loaded.client_json = source->client_json();
  loaded.world_size = source->world_size();

  std::string error;
  try {
    for (auto& unit : image.units) {
      fill(*source, nullptr, unit, rank, unit.parameter);
      for (size_t i = 0; i < unit.states.size(); ++i) fill(*source, &image.state_aliases[i], unit, rank, unit.states[i]);
    }
    fill_buffers(*source, image, rank == 0, loaded.path);
    if (loaded.world_size == ranks) {
      for (const auto& [device, present] : generator_states(device_probe)) {
        const auto state = source->generator(rank, device);
        if (!state.empty()) set_generator_state(device, device_probe, state);
      }
    }
  } catch (const Error& failure) {
    error = failure.what();
  }
  comm::agree_on_success(communicator, error, ErrorCode::kCheckpointDamaged, "checkpoint", "load " + loaded.path, device_probe);
  if (rank == 0 && !loaded.damage.empty()) base::log_warning("load: fell back to ", loaded.path);
  return loaded;
}

}  // namespace deepspeed::checkpoint
