// The JSON part of a safetensors header, read strictly. Used by the safetensors files only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "formats/safetensors.h"

namespace deepspeed::formats {

inline constexpr uint64_t kLargestHeader = 100'000'000;  // bytes, the limit of the format's own library

bool dtype_from_name(std::string_view name, Dtype* out);

// Elements times element size; false when an extent is negative or the product does not fit in 63 bits.
bool tensor_bytes(const std::vector<int64_t>& shape, Dtype dtype, uint64_t* out);

// Tensors in the order of the JSON, shapes and offsets as written: offsets are not checked against each other or the file.
// Throws Error(kModelFormat) on anything that is not such a header.
SafetensorsHeader read_header_json(std::string_view json, const std::string& source);

}  // namespace deepspeed::formats
