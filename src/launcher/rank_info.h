// Rank discovery on a given environment. deepspeed/comm.h declares rank_info_from_environment(), which uses the process's own.
//
// Looked for in this order; the first launcher whose variables are there decides:
//   1. RANK, WORLD_SIZE            the deepspeed launcher, torchrun, or set by hand
//   2. OMPI_COMM_WORLD_*           Open MPI's mpirun
//   3. MV2_COMM_WORLD_*            MVAPICH2
//   4. PMI_RANK, PMI_SIZE          MPICH and Intel MPI (left to 5 when srun started the ranks and the MPI tells no local rank)
//   5. SLURM_PROCID                srun
// MASTER_ADDR and MASTER_PORT count under all of them.
#pragma once

#include "base/environment.h"
#include "deepspeed/comm.h"

namespace deepspeed::launcher {

RankInfo rank_info_from(const base::Environment& environment);

}  // namespace deepspeed::launcher
