// A model whose gradients are what the caller says: loss = sum(w * x), so that the gradient of w is x. With SGD and a rate of 1, w is minus the sum of
// the steps' gradients.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>

#include "deepspeed/engine.h"

namespace deepspeed::testing {

struct OneWeight : torch::nn::Module {
  OneWeight() { w = register_parameter("w", torch::zeros({3})); }
  torch::Tensor w;
};

struct OneWeightRun {
  std::shared_ptr<OneWeight> net = std::make_shared<OneWeight>();
  std::unique_ptr<Engine> engine;

  void backward(const torch::Tensor& gradient) { engine->backward((net->w * gradient.to(net->w.scalar_type())).sum()); }
  void backward(double gradient) { backward(torch::full({3}, gradient)); }
  torch::Tensor weight() { return engine->safe_get_full_fp32_param(net->w); }
};

// SGD with rate 1 and a micro batch of 1; `more` is further configuration, starting with a comma.
inline OneWeightRun one_weight(std::shared_ptr<Communicator> communicator, int stage, int accumulation = 1, const std::string& more = "",
                               bool share_memory = true) {
  OneWeightRun run;
  EngineOptions options;
  options.config_json = R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": )" + std::to_string(accumulation) +
                        R"(, "optimizer": {"type": "SGD", "params": {"lr": 1.0}}, "zero_optimization": {"stage": )" +
                        std::to_string(stage) + R"(, "stage3_param_persistence_threshold": 0})" + more + "}";
  options.communicator = std::move(communicator);
  options.device = "cpu";
  options.share_memory = share_memory;
  run.engine = initialize(std::shared_ptr<torch::nn::Module>(run.net), options);
  return run;
}

// The message of the Error that `call` throws, with its code in front; "" when it throws none.
inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return "E" + std::to_string(static_cast<int>(error.code())) + " " + error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace deepspeed::testing
