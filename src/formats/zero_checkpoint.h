// ZeRO checkpoint directories of the real DeepSpeed, stages 1 to 3, and the full fp32 weights in them.
//
//   DIR/latest                                         tag of the newest checkpoint
//   DIR/TAG/mp_rank_00_model_states.pt                 names and shapes of parameters, buffers (stages 1, 2)
//   DIR/TAG/zero_pp_rank_R_mp_rank_00_model_states.pt  the same per rank (stage 3)
//   DIR/TAG/[bf16_]zero_pp_rank_R_mp_rank_00_optim_states.pt   this rank's run of the flat fp32 weights of each group
//
// Stages 1, 2: the runs of a group, rank after rank, are its parameters back to back, then padding. Stage 3: each parameter is cut into equal runs of
// ceil(elements / ranks), one on each rank; a rank's sub-groups lie back to back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "formats/torch_file.h"

namespace deepspeed::formats {

// A weight, buffer or frozen parameter, as fp32 elements from pieces of the files.
struct ZeroWeight {
  struct Piece {
    std::span<const std::byte> bytes;  // of `dtype`
    Dtype dtype = Dtype::kF32;
  };
  std::string name;
  std::vector<int64_t> shape;
  std::vector<Piece> pieces;
  bool trained = false;
  std::map<std::string, std::vector<Piece>>
      states;  // of the optimizer, by torch's names (exp_avg, ...), as many elements each; of trained ones only

  uint64_t elements() const;
};

// out[count] = elements [begin, begin + count) of pieces that lie one after another, as fp32.
void read_pieces(const std::vector<ZeroWeight::Piece>& pieces, uint64_t begin, uint64_t count, float* out);

// An open checkpoint directory; pieces stay valid while it lives. Files are mapped, so memory does not grow with the model.
class ZeroCheckpoint {
 public:
  struct Options {
    std::string tag;  // empty: what DIR/latest says
    bool frozen_parameters = true;
  };
  // Throws Error kCheckpointMissing, kCheckpointDamaged, kFile; kNotBuilt for model-parallel, pipeline and expert files, by name.
  ZeroCheckpoint(const std::string& directory, const Options& options);

  const std::string& folder() const { return folder_; }  // DIR/TAG
  int stage() const { return stage_; }
  size_t ranks() const { return optimizer_files_.size(); }
  // In the order of the model's files: trained parameters by group, buffers, frozen parameters, other names of shared ones.
  const std::vector<ZeroWeight>& weights() const { return weights_; }
  // Counters, schedule and the caller's values: a model_states file's dict. Optimizer settings and loss scale: rank 0's optimizer dict.
  const PickleValue& model_state() const { return model_files_[0]->root(); }
  const PickleValue& optimizer_state() const { return optimizer_state(0); }
  // Steps that the optimizer has taken.
  int64_t optimizer_steps() const { return optimizer_steps_; }

 private:
  struct Run;

  void open_files();
  void read_groups();
  void read_partitioned();
  void read_rest(bool frozen_parameters);
  // The tensors of the torch optimizer's dict for a group, by name, as long as the group's run of weights; nullptr: none.
  const PickleValue* state_of_group(size_t rank, size_t group) const;
  void add_states(size_t rank, size_t group, uint64_t elements, std::map<std::string, Run>* runs);
  void note_steps(const PickleValue& state, const TorchFile& file);
  const PickleValue& optimizer_state(size_t rank) const;
  [[noreturn]] void damaged(const std::string& what) const;

  std::string folder_;
  int stage_ = 0;
  int64_t optimizer_steps_ = 0;
  std::vector<std::unique_ptr<TorchFile>> model_files_, optimizer_files_;  // by rank; one model file in stages 1 and 2
  std::vector<std::unique_ptr<std::vector<std::byte>>> copies_;            // of tensors that are not contiguous
  std::vector<ZeroWeight> weights_;
};

// Universal Checkpoint directories: zero/NAME/{fp32,exp_avg,exp_avg_sq,step}.pt for each trained parameter, whole, and model_states files beside them.
class UniversalCheckpoint {
 public:
  // `folder`: the one that holds zero/. Throws Error kCheckpointDamaged, kFile.
  explicit UniversalCheckpoint(const std::string& folder);

  const std::vector<ZeroWeight>& weights() const { return weights_; }
  const PickleValue& model_state() const { return model_->root(); }
  const PickleValue& optimizer_state() const { return optimizer_->root(); }
  int64_t optimizer_steps() const { return optimizer_steps_; }

 private:
  std::unique_ptr<TorchFile> model_, optimizer_;
  std::vector<std::unique_ptr<TorchFile>> files_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> copies_;
  std::vector<ZeroWeight> weights_;
  int64_t optimizer_steps_ = 0;
};

// Writes the weights as OUT/model.safetensors, or numbered shards of at most `max_shard_bytes` with model.safetensors.index.json. Returns the files.
std::vector<std::string> write_fp32_weights(const ZeroCheckpoint& checkpoint, const std::string& output, uint64_t max_shard_bytes);

}  // namespace deepspeed::formats
