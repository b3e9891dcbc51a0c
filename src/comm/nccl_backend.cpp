#include "comm/nccl_backend.h"

#include <dlfcn.h>

#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::comm {

BackendFactory nccl_factory() {
  using MakeFactory = void (*)(BackendFactory*);
  void* plugin = ::dlopen("libdeepspeed_nccl.so", RTLD_NOW | RTLD_GLOBAL);
  if (!plugin) {
    const char* why = ::dlerror();
    throw Error(ErrorCode::kEnvironment, "comm",
                base::str("backend nccl: libdeepspeed_nccl.so does not load: ", why ? why : "unknown reason",
                          "; build with nccl.h and the CUDA headers present, or choose backend gloo"));
  }
  auto make = reinterpret_cast<MakeFactory>(::dlsym(plugin, "deepspeed_nccl_factory"));
  if (!make) throw Error(ErrorCode::kEnvironment, "comm", "backend nccl: libdeepspeed_nccl.so is of another version");
  BackendFactory factory;
  make(&factory);
  return factory;
}

}  // namespace deepspeed::comm
