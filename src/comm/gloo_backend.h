// c10d's Gloo back end. The only file that sees Gloo's headers is gloo_backend.cpp.
#pragma once

#include "comm/c10d_communicator.h"

namespace deepspeed::comm {

// `loopback`: all ranks live on this host, so no network interface is needed.
BackendFactory gloo_factory(bool loopback);

}  // namespace deepspeed::comm
