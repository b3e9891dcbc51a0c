// Models for engine tests, and a plain training loop to compare with.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "deepspeed/engine.h"

namespace deepspeed::testing {

// Two blocks of odd sizes, a parameter of one element, one of none, one smaller than the world, and one that is never used.
struct OddNet : torch::nn::Module {
  OddNet() {
    torch::manual_seed(7);
    for (int i = 0; i < 2; ++i) {
      up.push_back(register_module("layers_" + std::to_string(i) + "_up", torch::nn::Linear(5, 7)));
      down.push_back(register_module("layers_" + std::to_string(i) + "_down", torch::nn::Linear(7, 5)));
    }
    scale = register_parameter("scale", torch::full({1}, 0.5));
    shift = register_parameter("shift", torch::randn({3}) * 0.1);
    nothing = register_parameter("nothing", torch::empty({5, 0}));
    unused = register_parameter("unused", torch::randn({4}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = x;
    for (size_t i = 0; i < up.size(); ++i) h = h + down[i](torch::tanh(up[i](h)));
    return (h * scale).pow(2).mean() + shift.sum() * 0.1 + h.matmul(nothing).sum();
  }
  std::vector<torch::nn::Linear> up, down;
  torch::Tensor scale, shift, nothing, unused;
};

// A tied embedding, a block used twice, and a path that depends on the call.
struct TiedNet : torch::nn::Module {
  TiedNet() {
    torch::manual_seed(11);
    table = register_parameter("table", torch::randn({13, 6}) * 0.3);
    head = register_parameter("head", table);  // the same tensor under a second name
    block = register_module("block", torch::nn::Linear(6, 6));
    extra = register_module("extra", torch::nn::Linear(6, 6));
  }
  torch::Tensor forward(const torch::Tensor& ids, bool use_extra) {
    auto h = torch::embedding(table, ids);
    h = h + torch::tanh(block(h));
    h = h + torch::tanh(block(h));
    if (use_extra) h = h + torch::tanh(extra(h));
    return torch::log_softmax(h.matmul(head.t()), -1).select(-1, 3).mean().neg();
  }
  torch::Tensor table, head;
  torch::nn::Linear block{nullptr}, extra{nullptr};
};

struct RunSettings {
  int stage = 0;
  int world = 1;
  int accumulation = 1;
  std::string more = "";       // further configuration, starting with a comma
  std::string zero_more = "";  // further keys of zero_optimization, starting with a comma
  bool share_memory = true;
  std::string backend = "auto";
  int ranks_per_host = 0;  // for "shm+gloo"
};

inline std::string config_json(const RunSettings& s) {
  return "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": " + std::to_string(s.accumulation) +
         ", \"gradient_clipping\": 0.5, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, \"betas\": [0.9, 0.95], \"eps\": "
         "1e-8, "
         "\"weight_decay\": 0.1}}, \"zero_optimization\": {\"stage\": " +
         std::to_string(s.stage) + ", \"stage3_param_persistence_threshold\": 0" + s.zero_more + "}" + s.more + "}";
}

// Rows of step `step`, micro batch `micro`, rank `rank`: the same global batch is cut over any world size that divides 4 * accumulation.
inline torch::Tensor rows(int step, int chunk) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(1000 * step + chunk));
  return torch::randn({2, 5}, generator);
}

}  // namespace deepspeed::testing
