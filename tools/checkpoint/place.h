// How the tools of checkpoints name one: DIR (what its `latest` says), DIR with --tag, or DIR/TAG itself. And sizes for people.
#pragma once

#include <cstdint>
#include <string>

namespace deepspeed::tools {

struct Place {
  std::string directory, tag;
  std::string path() const { return directory + "/" + tag; }
};

// Throws Error(kCheckpointMissing).
Place place_of(std::string path, const std::string& tag);

std::string size_text(uint64_t bytes);  // "1.6 GB"

}  // namespace deepspeed::tools
