#include "checkpoint/place.h"

#include <cstdio>

#include "base/text.h"
#include "deepspeed/error.h"
#include "store/directory.h"

namespace deepspeed::tools {

Place place_of(std::string path, const std::string& tag) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  auto& files = store::disk();
  if (!tag.empty()) return {path, tag};
  if (store::kind_of_checkpoint(files, path)) {
    const size_t slash = path.find_last_of('/');
    if (slash == std::string::npos) return {".", path};
    return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
  }
  for (const char* name : {"latest", "latest_universal"}) {
    const std::string latest = store::latest_tag(files, path, name);
    if (!latest.empty()) return {path, latest};
  }
  throw Error(ErrorCode::kCheckpointMissing, "checkpoint",
              base::str("got ", path, ", which is no checkpoint and has no `latest`, allowed a checkpoint, or --tag with ",
                        store::describe_tags(files, path)));
}

std::string size_text(uint64_t bytes) {
  const char* const units[] = {"B", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < std::size(units)) value /= 1000, ++unit;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
  return text;
}

}  // namespace deepspeed::tools
