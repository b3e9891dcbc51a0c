// A unit at run time: parameters that live in one flat buffer and are gathered, reduced, stepped and saved together.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <memory>
#include <string>
#include <vector>

#include "deepspeed/comm.h"
#include "tensor/unit_layout.h"

namespace deepspeed::zero {

// A place for a unit in memory that all ranks of the group map.
struct SharedPlace {
  std::shared_ptr<SharedMemory> memory;
  size_t offset = 0;  // bytes
};

// Owns the flat buffer. Parameters are views of its storage; releasing frees the bytes and keeps the StorageImpl, so every view (saved tensors of
// backward included) sees the data again after the next gather. With a shared place there is one copy for all ranks instead: always whole,
// each rank writes its shard, and a collective stands between these writes and the others' reads. Not thread safe.
class Unit {
 public:
  // `parameters` (same dtype and device, in the order of `layout`) become views. They keep their values (in a shared place: those of rank 0, when
  // it has come here); the shard of `rank` is cut out of them.
  Unit(int id, tensor::UnitLayout layout, std::vector<at::Tensor> parameters, at::ScalarType type, c10::Device device, int rank,
       bool trainable, int group, bool always_whole, SharedPlace place = {});

  int id() const { return id_; }
  const tensor::UnitLayout& layout() const { return layout_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  bool trainable() const { return trainable_; }
  int group() const { return group_; }
  bool always_whole() const { return always_whole_; }
  int64_t elements() const { return layout_.padded_elements(); }
  at::ScalarType type() const { return type_; }
  c10::Device device() const { return device_; }
  const std::string& label() const { return label_; }  // for messages: "unit 3 (model.layers.0.*)"

  // [padded] in the working type. Holds data only while whole().
  const at::Tensor& flat() const { return flat_; }
  // [shard] in the working type: this rank's part. A view of flat() when always_whole(), the shared memory itself when shared().
  const at::Tensor& shard() const { return shard_; }
  const c10::StorageImpl* storage() const { return flat_.storage().unsafeGetStorageImpl(); }

  bool shared() const { return place_.memory != nullptr; }
  bool whole() const { return whole_; }
  // Gives the storage bytes of its own (contents undefined). The caller fills them.
  void allocate();
  // Frees the bytes. The shard must hold what is to be kept. No effect on units that are always whole.
  void release();

  // Cuts the shard out of the whole buffer and, unless always_whole(), releases the rest. Called once, after the values are agreed on.
  void adopt_shard();
  // Shared units: gives this rank a copy of its own, with the same values, behind the same tensors; and takes it away again.
  void isolate();
  void rejoin();
  // Copies the whole buffer's part of this rank into the shard, for writes made while it was gathered.
  void update_shard_from_whole();

 private:
  at::DataPtr shared_bytes(size_t offset) const;

  int id_;
  tensor::UnitLayout layout_;
  std::vector<at::Tensor> parameters_;
  at::ScalarType type_;
  c10::Device device_;
  int rank_;
  bool trainable_;
  int group_;
  bool always_whole_;
  SharedPlace place_;
  std::string label_;
  at::Tensor flat_;
  at::Tensor shard_;
  bool whole_ = false;
};

}  // namespace deepspeed::zero
