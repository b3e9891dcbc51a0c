#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"
#include "deepspeed/error.h"
#include "formats/safetensors.h"
#include "formats/safetensors_header.h"

namespace deepspeed::formats {
namespace {

[[noreturn]] void misused(const std::string& source, const std::string& text) {
  throw Error(ErrorCode::kUsage, "safetensors", base::str("writing ", source, ": ", text));
}

}  // namespace

uint64_t TensorSpec::size() const {
  uint64_t bytes = 0;
  if (!tensor_bytes(shape, dtype, &bytes)) misused(name, "the shape's size does not fit in 63 bits");
  return bytes;
}

std::string make_safetensors_header(const std::vector<TensorSpec>& tensors, const std::map<std::string, std::string>& metadata) {
  using nlohmann::json;
  std::set<std::string> names;
  std::string text = "{";
  uint64_t offset = 0;
  try {
    if (!metadata.empty()) text += "\"__metadata__\":" + json(metadata).dump();
    for (const TensorSpec& tensor : tensors) {
      if (tensor.name == "__metadata__" || !names.insert(tensor.name).second) {
        misused("a header", base::str("name: got ", tensor.name, ", which is reserved or given twice"));
      }
      const uint64_t end = offset + tensor.size();
      if (end < offset) misused("a header", "the file's size does not fit in 64 bits");
      if (text.size() > 1) text += ',';
      // Numbers by the JSON library: a stream would follow the program's locale.
      text += json(tensor.name).dump() + R"(:{"dtype":")" + dtype_name(tensor.dtype) + R"(","shape":)" + json(tensor.shape).dump() +
              R"(,"data_offsets":)" + json({offset, end}).dump() + "}";
      offset = end;
    }
  } catch (const json::exception& error) {
    misused("a header", base::str("a name or metadata value is not UTF-8: ", error.what()));
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kLargestHeader) misused("a header", base::str("its length: got ", text.size(), ", allowed up to ", kLargestHeader));
  const uint64_t length = text.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + text;
}

const std::map<std::string, std::string>& SafetensorsWriter::default_metadata() {
  static const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  return metadata;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : source_(path), tensors_(std::move(tensors)) {
  const std::string header = make_safetensors_header(tensors_, metadata);
  file_ = std::make_unique<OutputFile>(path);
  fd_ = file_->fd();
  put(std::as_bytes(std::span(header)));
}

SafetensorsWriter::SafetensorsWriter(int fd, const std::string& source, std::vector<TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : source_(source), fd_(fd), tensors_(std::move(tensors)) {
  const std::string header = make_safetensors_header(tensors_, metadata);
  put(std::as_bytes(std::span(header)));
}

void SafetensorsWriter::put(std::span<const std::byte> data) {
  if (file_) {
    file_->write(data);
  } else {
    write_all(fd_, data, source_);
  }
}

void SafetensorsWriter::write(const std::string& name, std::span<const std::byte> data) {
  const bool expected = filled_ == 0 && next_ < tensors_.size() && tensors_[next_].name == name;
  if (!expected) {
    misused(source_, base::str("got tensor ", name, ", allowed ",
                               next_ == tensors_.size() ? "none: all are written" : base::str("the rest of ", tensors_[next_].name)));
  }
  if (data.size() != tensors_[next_].size()) {
    misused(source_, base::str("got ", data.size(), " bytes, allowed ", tensors_[next_].size(), " (tensor ", name, ")"));
  }
  put(data);
  ++next_;
}

void SafetensorsWriter::append(std::span<const std::byte> data) {
  uint64_t left = data.size();
  while (left > 0 && next_ < tensors_.size()) {
    const uint64_t taken = std::min(left, tensors_[next_].size() - filled_);
    filled_ += taken;
    left -= taken;
    if (filled_ == tensors_[next_].size()) {
      filled_ = 0;
      ++next_;
    }
  }
  if (left > 0) misused(source_, base::str("got ", left, " bytes beyond the last declared tensor, allowed none"));
  put(data);
}

void SafetensorsWriter::finish(bool durable) {
  while (filled_ == 0 && next_ < tensors_.size() && tensors_[next_].size() == 0) ++next_;
  if (next_ < tensors_.size()) misused(source_, base::str("finished too early: the data of ", tensors_[next_].name, " is missing"));
  if (file_) {
    file_->commit(durable);
  } else if (durable && ::fsync(fd_) != 0) {
    throw Error(ErrorCode::kFile, "safetensors", base::str("syncing ", source_, ": ", std::strerror(errno)));
  }
}

}  // namespace deepspeed::formats
