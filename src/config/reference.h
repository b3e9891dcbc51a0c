// The reference page of the configuration, written from the schema.
#pragma once

#include <string>

namespace deepspeed::config {

// Markdown; the content of docs/config.md.
std::string config_reference();

}  // namespace deepspeed::config
