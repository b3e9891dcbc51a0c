// A plain LibTorch model trained with ZeRO-3. Run with: deepspeed --num_ranks 2 tiny_training
#include <torch/torch.h>

#include <iostream>

#include "deepspeed/engine.h"

const char* kConfig = R"({
  "train_micro_batch_size_per_gpu": 8,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.0}},
  "gradient_clipping": 1.0,
  "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}
})";

int main() try {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(4, 64), torch::nn::ReLU(), torch::nn::Linear(64, 1));
  auto engine = deepspeed::initialize(model.ptr(), {.config_json = kConfig});
  const int rank = engine->communicator().rank();
  torch::manual_seed(1 + rank);  // each rank has data of its own
  for (int step = 0; step < 60; ++step) {
    auto x = torch::randn({8, 4});
    auto loss = torch::mse_loss(model->forward(x), x.sum(1, true));
    engine->backward(loss);
    engine->step();
    if (rank == 0 && step % 20 == 19) std::cout << "step " << step + 1 << " loss " << loss.item<float>() << std::endl;
  }
} catch (const deepspeed::Error& error) {
  std::cerr << error.what() << std::endl;
  return deepspeed::exit_status(error);
}
