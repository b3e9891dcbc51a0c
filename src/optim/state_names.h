// torch's names for the states of optimizers, which checkpoints of the real DeepSpeed and its safe accessors use.
#pragma once

#include <string>
#include <vector>

namespace deepspeed::optim {

// The names under which `state`, one of this library's, may be found: its own first, then torch's.
std::vector<std::string> names_of_state(const std::string& state);

}  // namespace deepspeed::optim
