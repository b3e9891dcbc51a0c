// Another number of ranks for a running job, at a step boundary: ranks leave or join, and the loss curve goes on. Experimental: names may change.
//
//   old group, all ranks:   hand_over(*engine, "/dev/shm/job");  engine.reset();  model.reset();
//   (ranks leave, new ones start; init_distributed() with the new rank, size and port)
//   new group, all ranks:   auto taken = take_over(make_model(), options, "/dev/shm/job");
//
// State passes through the index of checkpoints (docs/formats/checkpoint.md): each new rank reads the elements of its shards from whichever files hold them.
#pragma once

#include <memory>
#include <string>

#include "deepspeed/engine.h"

namespace deepspeed::experimental::dynamic_sharding {

// Collective over the ranks of `engine`, between two accumulations. Writes parameters, optimizer, schedule, counters and `client_state` (JSON text) into
// `directory`, which all ranks of the new group must see: memory (/dev/shm) on one host, a shared folder on several. Throws Error(kUsage) inside an accumulation,
// Error(kCheckpointWrite).
void hand_over(Engine& engine, const std::string& directory, const std::string& client_state = "{}");

struct Taken {
  std::unique_ptr<Engine> engine;
  std::string client_state;  // as given to hand_over()
};

// Collective over the new group (`options.communicator`, else init_distributed()). The configuration of `options` is taken with the train_batch_size and the micro
// batch of the old group, so that gradient_accumulation_steps makes up for the other number of ranks; Error(kConfigInvalid) when it cannot. `model` is a fresh one
// of the same architecture: its values are replaced. Removes what hand_over() has written. Throws as load_checkpoint() does.
Taken take_over(std::shared_ptr<torch::nn::Module> model, EngineOptions options, const std::string& directory);

}  // namespace deepspeed::experimental::dynamic_sharding
