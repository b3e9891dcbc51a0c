#include "store/source.h"

#include "base/check.h"
#include "base/text.h"
#include "deepspeed/error.h"
#include "store/directory.h"

namespace deepspeed::store {

const std::map<std::string, SavedBuffer>& Source::buffers() const {
  static const std::map<std::string, SavedBuffer> kNone;
  return kNone;
}

std::vector<std::byte> Source::read_buffer(const std::string& name) {
  DS_CHECK(false, name);
  return {};
}

std::unique_ptr<Source> open_source(FileSystem& files, const std::string& directory, const std::string& tag) {
  const std::string path = directory + "/" + tag;
  const auto kind = kind_of_checkpoint(files, path);
  if (!kind) {
    throw Error(ErrorCode::kCheckpointMissing, "checkpoint",
                base::str("load: got no checkpoint ", path, ", allowed ", describe_tags(files, directory)));
  }
  switch (*kind) {
    case Kind::kNative:
      return open_native(files, path);
    case Kind::kNativeJson:
      return open_native_v1(path);
    case Kind::kZero:
    case Kind::kUniversal:
      break;
  }
  return open_deepspeed(directory, tag);
}

}  // namespace deepspeed::store
