// c10d's NCCL back end (RCCL in a ROCm build of torch), in a plugin that is loaded only when a run trains on such a device.
#pragma once

#include "comm/c10d_communicator.h"

namespace deepspeed::comm {

// Throws Error(kEnvironment) when the plugin was not built or does not load.
BackendFactory nccl_factory();

}  // namespace deepspeed::comm
