#include "engine/shard_check.h"

#include <algorithm>
#include <functional>
#include <sstream>
#include <vector>

#include "base/environment.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/agreement.h"
#include "deepspeed/error.h"

namespace deepspeed::engine {
namespace {

std::string shape_text(at::IntArrayRef shape) {
  std::vector<std::string> extents;
  for (const int64_t extent : shape) extents.push_back(std::to_string(extent));
  return base::str("[", base::join(extents, ", "), "]");
}

// FNV-1a: the same on every machine, unlike std::hash.
uint64_t hash_of(const std::string& text) {
  uint64_t hash = 14695981039346656037ull;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string first_difference(const std::vector<std::string>& texts) {
  const auto ours = lines_of(texts[0]);
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    const auto theirs = lines_of(texts[rank]);
    for (size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
      const std::string a = i < ours.size() ? ours[i] : "nothing more", b = i < theirs.size() ? theirs[i] : "nothing more";
      if (a != b) return base::str("item ", i, ": got ", b, " on rank ", rank, ", allowed ", a, " as on rank 0");
    }
  }
  return "no difference";
}

}  // namespace

std::string describe_model(const tensor::ModuleTensors& tensors, int stage) {
  std::string text = base::str("ZeRO stage ", stage, "\n");
  for (const auto& parameter : tensors.parameters) {
    text += base::str("parameter ", parameter.name, " ", shape_text(parameter.tensor.sizes()),
                      parameter.tensor.requires_grad() ? "" : " frozen", "\n");
  }
  for (const auto& buffer : tensors.buffers) {
    text +=
        base::str("buffer ", buffer.name, " ", shape_text(buffer.tensor.sizes()), " ", c10::toString(buffer.tensor.scalar_type()), "\n");
  }
  return text;
}

std::string describe_units(const std::vector<std::unique_ptr<zero::Unit>>& units) {
  std::string text;
  for (const auto& unit : units) {
    const auto& layout = unit->layout();
    text += base::str("unit of ", layout.shard_elements(), " elements a rank", unit->trainable() ? "" : ", frozen", ":");
    for (const auto& slot : layout.slots()) text += base::str(" ", slot.name, " at ", slot.offset);
    text += "\n";
  }
  return text;
}

void compare_layouts(Communicator& communicator, const std::string& description, const std::string& when, const at::Tensor& device_probe) {
  if (communicator.size() == 1) return;
  const std::string hash = std::to_string(hash_of(description));
  const auto hashes = comm::gather_texts(communicator, hash, "shard layout", device_probe);
  if (std::all_of(hashes.begin(), hashes.end(), [&](const std::string& other) { return other == hashes[0]; })) return;
  const auto texts = comm::gather_texts(communicator, description, "shard layout", device_probe);
  const std::string message =
      base::str("shard layout, ", when, ": ", first_difference(texts),
                ". Do all ranks build the same model with its parameters in the same order, and read the same configuration?");
  if (base::Environment::of_process().text("DS_DISABLE_SHARD_CHECK") != "1") {
    throw Error(ErrorCode::kShardLayout, "engine", base::str(message, " (DS_DISABLE_SHARD_CHECK=1 turns this into a warning)"));
  }
  if (communicator.rank() == 0) base::log_warning(message);
}

}  // namespace deepspeed::engine
