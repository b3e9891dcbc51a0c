// Back ends in libraries of their own, loaded only by runs that use them: c10d's NCCL (RCCL in a ROCm build of torch) and the system's MPI.
#pragma once

#include "comm/c10d_communicator.h"

namespace deepspeed::comm {

// Throw Error(kEnvironment) when the plugin was not built or does not load.
BackendFactory nccl_factory();
BackendFactory mpi_factory();

}  // namespace deepspeed::comm
