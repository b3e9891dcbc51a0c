// Rows: optimizer and scheduler. The parameters of each schedule stand in schema_schedules.cpp.
#include "config/schema.h"

namespace deepspeed::config {

namespace {

using enum Type;
using enum Status;

constexpr std::string_view kSameUpdate = "one fused pass over flat buffers does the update in any case";
constexpr std::string_view kOneBit = "1-bit optimizers";
constexpr std::string_view kSameIteration = "both are one iteration up to rounding, and the standard form is computed";

constexpr Key kRows[] = {
    {"optimizer", kSection, "", "", kBuilt, "", "", "The optimizer."},
    {"optimizer.type", kText, "", "", kBuilt, "", "",
     "Adam, AdamW, Lamb, Adagrad, Lion or Muon, in any case, or SGD. AdamW decouples weight decay; Adam does so too unless adam_w_mode is "
     "false."},
    {"optimizer.legacy_fusion", kBool, "false", "", kNoEffect, "it chooses an old fp16 code path of DeepSpeed", "", "Old fp16 path."},
    {"optimizer.params", kSection, "", "", kBuilt, "", "", "Settings of the optimizer."},
    {"optimizer.params.lr", kNumber, "0.001", ">= 0", kBuilt, "", "",
     "Learning rate. Adagrad: 0.01. Muon: 0.02, and 0.0003 where Adam is at work; a rate that is given holds for both."},
    {"optimizer.params.betas", kNumberList, "[0.9, 0.999]", "", kBuilt, "", "",
     "Adam, AdamW, Lamb, Lion: decay of the two moments, each at least 0 and below 1. Muon: those of its Adam, [0.9, 0.95]."},
    {"optimizer.params.eps", kNumber, "1e-8", ">= 0", kBuilt, "", "",
     "All but Lion and SGD: added to the denominator. Adagrad, Muon: 1e-10."},
    {"optimizer.params.weight_decay", kNumber, "0.0", ">= 0", kBuilt, "", "",
     "Weight decay. With torch_adam and decoupled decay the default is 0.01, as torch's AdamW has it."},
    {"optimizer.params.bias_correction", kBool, "true", "", kBuilt, "", "",
     "Adam, AdamW, Lamb: correct the moments for their start at zero."},
    {"optimizer.params.adam_w_mode", kBool, "true", "", kBuilt, "", "", "Adam: decoupled weight decay. AdamW always has it."},
    {"optimizer.params.torch_adam", kBool, "false", "", kBuilt, "", "",
     "Take the defaults of torch's Adam or AdamW. The arithmetic is the same."},
    {"optimizer.params.amsgrad", kBool, "false", "", kBuilt, "", "",
     "Adam and AdamW with torch_adam: divide by the largest second moment so far."},
    {"optimizer.params.maximize", kBool, "false", "", kBuilt, "", "",
     "SGD, Adagrad, Adam and AdamW with torch_adam: climb instead of descend."},
    {"optimizer.params.fp32_optimizer_states", kBool, "true", "", kNotBuilt, "16-bit optimizer states", "", "Moments in fp32."},
    {"optimizer.params.fused", kBool, "", "", kNoEffect, kSameUpdate, "", "torch: fused kernel."},
    {"optimizer.params.foreach", kBool, "", "", kNoEffect, kSameUpdate, "", "torch: kernel over lists of tensors."},
    {"optimizer.params.capturable", kBool, "false", "", kNoEffect, "no CUDA graphs are recorded here", "", "torch: safe in a CUDA graph."},
    {"optimizer.params.differentiable", kBool, "false", "", kNotBuilt, "differentiable optimizer", "", "torch: autograd through the step."},
    {"optimizer.params.set_grad_none", kBool, "true", "", kNoEffect, "gradients live in flat buffers that are cleared in place", "",
     "Fused Adam: drop gradients instead of clearing them."},
    {"optimizer.params.momentum", kNumber, "0.0", ">= 0", kBuilt, "", "", "SGD: momentum. Muon: 0.95."},
    {"optimizer.params.dampening", kNumber, "0.0", "", kBuilt, "", "", "SGD: dampening of the momentum."},
    {"optimizer.params.nesterov", kBool, "false", "", kBuilt, "", "", "SGD: Nesterov momentum."},
    {"optimizer.params.lr_decay", kNumber, "0.0", ">= 0", kBuilt, "", "", "Adagrad: decay of the rate."},
    {"optimizer.params.initial_accumulator_value", kNumber, "0.0", ">= 0", kBuilt, "", "", "Adagrad: start of the sum of squares."},
    {"optimizer.params.muon_lr", kNumber, "", ">= 0", kBuilt, "", "", "Muon: rate of matrices, in place of lr."},
    {"optimizer.params.adam_lr", kNumber, "", ">= 0", kBuilt, "", "", "Muon: rate of all other parameters, in place of lr."},
    {"optimizer.params.ns_method", kChoice, "", "gram | standard", kNoEffect, kSameIteration, "0.19",
     "Muon: form of the Newton-Schulz iteration."},
    {"optimizer.params.max_coeff", kNumber, "10.0", ">= 0", kBuilt, "", "", "Lamb: largest trust ratio."},
    {"optimizer.params.min_coeff", kNumber, "0.01", ">= 0", kBuilt, "", "", "Lamb: smallest trust ratio."},
    {"optimizer.params.eps_inside_sqrt", kBool, "false", "", kBuilt, "", "", "Lamb: eps under the root."},
    {"optimizer.params.freeze_step", kInteger, "", ">= 0", kDetail, kOneBit, "", "1-bit: last step of the warm-up."},
    {"optimizer.params.cuda_aware", kBool, "", "", kDetail, kOneBit, "", "1-bit: MPI takes device memory."},
    {"optimizer.params.comm_backend_name", kChoice, "", "nccl | mpi | hccl | compressed", kDetail, kOneBit, "", "1-bit: transport."},
    {"optimizer.params.exp_avg_mask", kAny, "", "", kDetail, kOneBit, "", "1-bit: positions whose momentum stays zero."},
    {"optimizer.params.var_freeze_step", kInteger, "", ">= 0", kDetail, kOneBit, "", "ZeroOneAdam: last update of the variance."},
    {"optimizer.params.var_update_scaler", kInteger, "", "> 0", kDetail, kOneBit, "", "ZeroOneAdam: growth of the variance interval."},
    {"optimizer.params.local_step_scaler", kInteger, "", "> 0", kDetail, kOneBit, "", "ZeroOneAdam: growth of the local interval."},
    {"optimizer.params.local_step_clipper", kInteger, "", "> 0", kDetail, kOneBit, "", "ZeroOneAdam: largest local interval."},
    {"optimizer.params.coeff_beta", kNumber, "", ">= 0", kDetail, kOneBit, "", "OneBitLamb: smoothing of trust ratios."},
    {"optimizer.params.factor_max", kNumber, "", ">= 0", kDetail, kOneBit, "", "OneBitLamb: largest factor."},
    {"optimizer.params.factor_min", kNumber, "", ">= 0", kDetail, kOneBit, "", "OneBitLamb: smallest factor."},
    {"optimizer.params.factor_threshold", kNumber, "", ">= 0", kDetail, kOneBit, "", "OneBitLamb: change of the factor per step."},

    {"scheduler", kSection, "", "", kBuilt, "", "", "The learning-rate schedule."},
    {"scheduler.type", kText, "", "", kBuilt, "", "", "LRRangeTest, OneCycle, WarmupLR, WarmupDecayLR or WarmupCosineLR."},
    {"scheduler.params", kAny, "", "", kBuilt, "", "", "Settings of the schedule; see the tables of the schedules below."},
};

}  // namespace

std::span<const Key> schema_optimizer() { return kRows; }

}  // namespace deepspeed::config
