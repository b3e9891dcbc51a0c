#include "comm/plugins.h"

#include <dlfcn.h>

#include <string>

#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::comm {
namespace {

BackendFactory load(const std::string& backend, const char* remedy) {
  using MakeFactory = void (*)(BackendFactory*);
  const std::string library = base::str("libdeepspeed_", backend, ".so"), symbol = base::str("deepspeed_", backend, "_factory");
  void* plugin = ::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!plugin) {
    const char* why = ::dlerror();
    throw Error(ErrorCode::kEnvironment, "comm",
                base::str("backend ", backend, ": ", library, " does not load: ", why ? why : "unknown reason", "; ", remedy));
  }
  auto make = reinterpret_cast<MakeFactory>(::dlsym(plugin, symbol.c_str()));
  if (!make) throw Error(ErrorCode::kEnvironment, "comm", base::str("backend ", backend, ": ", library, " is of another version"));
  BackendFactory factory;
  make(&factory);
  return factory;
}

}  // namespace

BackendFactory nccl_factory() { return load("nccl", "build with nccl.h and the CUDA headers present, or choose backend gloo"); }

BackendFactory mpi_factory() { return load("mpi", "build with MPI present (Debian: libopenmpi-dev), or choose backend gloo"); }

}  // namespace deepspeed::comm
