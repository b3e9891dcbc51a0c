// One pass over the JSON events, so that a key given twice is seen (a JSON tree keeps only one) and a large header needs no tree.
#include "formats/safetensors_header.h"

#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::formats {
namespace {

using nlohmann::json;

class Reader : public nlohmann::json_sax<json> {
 public:
  explicit Reader(const std::string& source) : source_(source) {}

  SafetensorsHeader take() { return std::move(header_); }

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kRoot;
        return true;
      case Place::kRoot:
        place_ = name_ == "__metadata__" ? Place::kMetadata : Place::kTensor;
        if (place_ == Place::kTensor) begin_tensor();
        return true;
      default:
        unexpected("an object");
    }
  }

  bool end_object() override {
    if (place_ == Place::kTensor) end_tensor();
    place_ = place_ == Place::kRoot ? Place::kEnd : Place::kRoot;
    return true;
  }

  bool key(string_t& text) override {
    if (place_ == Place::kRoot) {
      name_ = text;
      field_.clear();
      if (!names_.insert(text).second) fail("a name is given twice");
    } else if (place_ == Place::kMetadata) {
      field_ = text;
      if (!header_.metadata.emplace(text, "").second) fail(base::str("metadata key ", text, " is given twice"));
    } else {
      field_ = text;
      bool* seen = text == "dtype" ? &has_dtype_ : text == "shape" ? &has_shape_ : text == "data_offsets" ? &has_offsets_ : nullptr;
      if (seen == nullptr) fail(base::str("key of a tensor: got ", text, ", allowed dtype, shape, data_offsets"));
      if (*seen) fail(base::str("key ", text, " is given twice"));
      *seen = true;
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::kTensor && field_ == "shape") {
      place_ = Place::kShape;
    } else if (place_ == Place::kTensor && field_ == "data_offsets") {
      place_ = Place::kOffsets;
    } else {
      unexpected("an array");
    }
    return true;
  }

  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      if (value > static_cast<uint64_t>(INT64_MAX)) fail(base::str("shape: got ", value, ", allowed up to ", INT64_MAX));
      tensor().shape.push_back(static_cast<int64_t>(value));
    } else if (place_ == Place::kOffsets && offsets_ < 2) {
      (offsets_++ == 0 ? tensor().begin : tensor().end) = value;
    } else {
      unexpected(base::str("the number ", value));
    }
    return true;
  }

  bool string(string_t& text) override {
    if (place_ == Place::kMetadata) {
      header_.metadata[field_] = text;
    } else if (place_ == Place::kTensor && field_ == "dtype") {
      if (!dtype_from_name(text, &tensor().dtype))
        fail(base::str("dtype: got ", text, ", allowed BOOL, U8 to U64, I8 to I64, F8 to F64, BF16, C64"));
    } else {
      unexpected(base::str("the text \"", text, "\""));
    }
    return true;
  }

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("true or false"); }
  bool number_integer(number_integer_t value) override { unexpected(base::str("the number ", value)); }
  bool number_float(number_float_t, const string_t& text) override { unexpected(base::str("the number ", text)); }
  bool binary(binary_t&) override { unexpected("binary data"); }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    fail(base::str("the header is not JSON at byte ", 8 + position, ": ", error.what()));
  }

 private:
  enum class Place { kStart, kRoot, kMetadata, kTensor, kShape, kOffsets, kEnd };

  TensorEntry& tensor() { return header_.tensors.back(); }

  void begin_tensor() {
    header_.tensors.emplace_back().name = name_;
    has_dtype_ = has_shape_ = has_offsets_ = false;
    offsets_ = 0;
  }

  void end_tensor() {
    const char* missing = !has_dtype_ ? "dtype" : !has_shape_ ? "shape" : !has_offsets_ ? "data_offsets" : nullptr;
    if (missing != nullptr) fail(base::str("key ", missing, " is missing"));
    if (offsets_ != 2) fail(base::str("data_offsets: got ", offsets_, " numbers, allowed 2"));
  }

  [[noreturn]] void fail(const std::string& text) const {
    throw Error(ErrorCode::kModelFormat, "safetensors",
                base::str(source_, ": ", text, name_.empty() ? "" : base::str(" (tensor ", name_, ")")));
  }

  [[noreturn]] void unexpected(const std::string& got) const {
    const char* allowed = "an object";
    if (place_ == Place::kMetadata) allowed = "text as metadata";
    if (place_ == Place::kTensor) allowed = field_ == "dtype" ? "text as dtype" : "an array of whole numbers";
    if (place_ == Place::kShape) allowed = "whole numbers as shape";
    if (place_ == Place::kOffsets) allowed = "two whole numbers as data_offsets";
    fail(base::str("header: got ", got, ", allowed ", allowed));
  }

  const std::string& source_;
  SafetensorsHeader header_;
  std::unordered_set<std::string> names_;
  Place place_ = Place::kStart;
  std::string name_, field_;  // last keys of the root and of the object in it
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int offsets_ = 0;  // numbers of data_offsets seen
};

}  // namespace

SafetensorsHeader read_header_json(std::string_view json_text, const std::string& source) {
  if (json_text.empty() || json_text.front() != '{') {
    throw Error(ErrorCode::kModelFormat, "safetensors", base::str(source, ": first byte of the header: got another, allowed {"));
  }
  // The JSON library takes a zero byte for the end of its input.
  if (const size_t zero = json_text.find('\0'); zero != std::string_view::npos) {
    throw Error(ErrorCode::kModelFormat, "safetensors",
                base::str(source, ": header: got a zero byte at byte ", 8 + zero, ", allowed JSON"));
  }
  Reader reader(source);
  json::sax_parse(json_text.begin(), json_text.end(), &reader);
  return reader.take();
}

}  // namespace deepspeed::formats
