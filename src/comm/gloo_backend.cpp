#include "comm/gloo_backend.h"

// The wheel compiles Gloo in but guards its header; Debian's libgloo-dev has the headers it needs.
#define USE_C10D_GLOO 1
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>

namespace deepspeed::comm {

BackendFactory gloo_factory(bool loopback) {
  return [loopback](c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                    std::chrono::milliseconds timeout) -> c10::intrusive_ptr<c10d::Backend> {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    // One worker keeps the calls of a group in order on the wire and off the cores that compute.
    options->threads = 1;
    const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
    if (interface && *interface) {
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(interface));
    } else if (loopback) {
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    } else {
      options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
    }
    return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
  };
}

}  // namespace deepspeed::comm
