#include "checkpoint/snapshot.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/check.h"
#include "checkpoint/generators.h"
#include "checkpoint/types.h"

namespace deepspeed::checkpoint {
namespace {

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

// One run of a flat tensor: the part of one parameter that a rank holds.
struct Part {
  size_t parameter;
  int64_t begin, count;  // elements of the parameter
  int64_t at;            // element of the shard where it begins
};

std::vector<Part> parts_of(const tensor::UnitLayout& layout, int rank, size_t first_parameter) {
  std::vector<Part> parts;
  const auto range = layout.shard(rank);
  for (size_t s = 0; s < layout.slots().size(); ++s) {
    const auto& slot = layout.slots()[s];
    const int64_t begin = std::max(slot.offset, range.begin), end = std::min(slot.offset + slot.elements, range.end);
    if (begin < end) parts.push_back({first_parameter + s, begin - slot.offset, end - begin, begin - range.begin});
  }
  return parts;
}

class SnapshotMaker {
 public:
  SnapshotMaker(const Image& image, int rank, int ranks, HostBuffers* buffers) : image_(image), rank_(rank), buffers_(buffers) {
    snapshot_.plans.resize(static_cast<size_t>(ranks));
    snapshot_.state_names = image.state_names;
    snapshot_.run_json = image.run_json;
    snapshot_.client_json = image.client_json;
  }

  Snapshot make(const at::Tensor& device_probe) {
    for (const auto& unit : image_.units) add_unit(unit);
    for (const auto& buffer : image_.buffers) add_buffer(buffer);
    for (const auto& [device, state] : generator_states(device_probe)) add_generator(device, state);
    return std::move(snapshot_);
  }

 private:
  void add_unit(const UnitImage& unit) {
    const size_t first = snapshot_.parameters.size();
    for (const auto& slot : unit.layout->slots()) {
      snapshot_.parameters.push_back({slot.name, slot.shape, unit.trained ? store::Role::kTrained : store::Role::kFrozen});
    }
    add_flat(*unit.layout, first, store::kValue, unit.parameter);
    for (size_t i = 0; i < unit.states.size(); ++i) add_flat(*unit.layout, first, image_.state_names[i], unit.states[i]);
  }

  void add_flat(const tensor::UnitLayout& layout, size_t first, const std::string& kind, const at::Tensor& shard) {
    const auto dtype = dtype_of(shard);
    for (size_t r = 0; r < snapshot_.plans.size(); ++r) {
      for (const Part& part : parts_of(layout, static_cast<int>(r), first))
        snapshot_.plans[r].pieces.push_back({part.parameter, kind, part.begin, part.count, dtype, 0, 0});
    }
    const auto bytes = hold(shard);
    const size_t width = formats::dtype_size(dtype);
    for (const Part& part : parts_of(layout, rank_, first)) {
      snapshot_.data.push_back(bytes.subspan(static_cast<size_t>(part.at) * width, static_cast<size_t>(part.count) * width));
    }
  }

  void add_buffer(const BufferImage& buffer) {
    const int64_t elements = buffer.tensor.numel();
    const size_t parameter = snapshot_.parameters.size();
    snapshot_.parameters.push_back({buffer.name, buffer.tensor.sizes().vec(), store::Role::kBuffer});
    snapshot_.plans[0].pieces.push_back({parameter, store::kValue, 0, elements, dtype_of(buffer.tensor), 0, 0});
    if (rank_ == 0) snapshot_.data.push_back(hold(buffer.tensor));
  }

  void add_generator(const std::string& device, const at::Tensor& state) {
    for (size_t r = 0; r < snapshot_.plans.size(); ++r) {
      snapshot_.plans[r].generators.push_back({static_cast<int>(r), device, 0, 0, state.nbytes()});
    }
    snapshot_.data.push_back(hold(state));
  }

  std::span<const std::byte> hold(const at::Tensor& tensor) {
    snapshot_.held.push_back(buffers_ ? buffers_->copy(snapshot_.held.size(), tensor) : tensor.detach().cpu().contiguous());
    return bytes_of(snapshot_.held.back());
  }

  const Image& image_;
  int rank_;
  HostBuffers* buffers_;
  Snapshot snapshot_;
};

}  // namespace

at::Tensor HostBuffers::copy(size_t index, const at::Tensor& source) {
  if (buffers_.size() <= index) buffers_.resize(index + 1);
  at::Tensor& buffer = buffers_[index];
  if (!buffer.defined() || buffer.sizes() != source.sizes() || buffer.scalar_type() != source.scalar_type()) {
    buffer = at::empty(source.sizes(), at::TensorOptions().dtype(source.scalar_type()));
  }
  buffer.copy_(source);
  return buffer;
}

Snapshot take_snapshot(const Image& image, int rank, int ranks, const at::Tensor& device_probe, HostBuffers* buffers) {
  at::NoGradGuard no_grad;
  return SnapshotMaker(image, rank, ranks, buffers).make(device_probe);
}

}  // namespace deepspeed::checkpoint
