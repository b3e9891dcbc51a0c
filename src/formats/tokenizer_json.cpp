#include "formats/tokenizer_json.h"

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "deepspeed/error.h"
#include "formats/decoder_steps.h"
#include "formats/mapped_file.h"

namespace deepspeed::formats {
namespace {

using nlohmann::json;

// Ids index a table, so a stray huge one must not be believed.
constexpr int64_t kLargestId = 16'000'000;

}  // namespace

TokenizerJson::TokenizerJson(const std::string& path) {
  const MappedFile file(path);
  load({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path);
}

TokenizerJson TokenizerJson::parse(std::string_view text, const std::string& source) {
  TokenizerJson tokenizer;
  tokenizer.load(text, source);
  return tokenizer;
}

void TokenizerJson::load(std::string_view text, const std::string& source) {
  const auto add = [&](int64_t id, const std::string& token, bool special) {
    if (id < 0 || id > kLargestId) {
      throw Error(ErrorCode::kModelFormat, "tokenizer", base::str(source, ": id of ", token, ": got ", id, ", allowed 0 to ", kLargestId));
    }
    if (static_cast<size_t>(id) >= tokens_.size()) tokens_.resize(static_cast<size_t>(id) + 1);
    tokens_[static_cast<size_t>(id)] = {token, true, special};
  };
  try {
    const json file = json::parse(text.begin(), text.end());
    const json& vocabulary = file.at("model").at("vocab");
    if (vocabulary.is_object()) {
      for (const auto& [token, id] : vocabulary.items()) add(id.get<int64_t>(), token, false);
    } else {
      // Unigram: pairs of piece and score, the id is the position.
      int64_t id = 0;
      for (const json& pair : vocabulary) add(id++, pair.at(0).get<std::string>(), false);
    }
    if (const auto added = file.find("added_tokens"); added != file.end() && added->is_array()) {
      for (const json& token : *added) {
        add(token.at("id").get<int64_t>(), token.at("content").get<std::string>(), token.value("special", false));
      }
    }
    const auto decoder = file.find("decoder");
    join_with_spaces_ = decoder == file.end() || decoder->is_null();
    if (!join_with_spaces_) make_decoder_steps(*decoder, source, steps_);
  } catch (const json::exception& error) {
    throw Error(ErrorCode::kModelFormat, "tokenizer", base::str(source, ": not a tokenizer.json: ", error.what()));
  }
}

std::string TokenizerJson::decode(std::span<const int64_t> ids, bool skip_special) const {
  std::vector<std::string> parts;
  for (const int64_t id : ids) {
    if (id < 0 || id >= vocabulary_size()) continue;
    const Token& token = tokens_[static_cast<size_t>(id)];
    if (token.known && !(skip_special && token.special)) parts.push_back(token.text);
  }
  for (const auto& step : steps_) step->apply(parts);
  return base::join(parts, join_with_spaces_ ? " " : "");
}

int64_t TokenizerJson::id_of(std::string_view token) const {
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (tokens_[id].known && tokens_[id].text == token) return static_cast<int64_t>(id);
  }
  return -1;
}

}  // namespace deepspeed::formats
