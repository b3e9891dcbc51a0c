// libdeepspeed_nccl.so: makes c10d's NCCL process group. Compiled when nccl.h, the CUDA headers and torch's CUDA library are there.
#define USE_C10D_NCCL 1
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "comm/c10d_communicator.h"

extern "C" void deepspeed_nccl_factory(deepspeed::comm::BackendFactory* factory) {
  *factory = [](c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                std::chrono::milliseconds timeout) -> c10::intrusive_ptr<c10d::Backend> {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = timeout;
    return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
  };
}
