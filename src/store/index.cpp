#include "store/index.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::store {
namespace {

[[noreturn]] void damaged(const std::string& source, const std::string& what) {
  throw Error(ErrorCode::kCheckpointDamaged, "checkpoint", base::str(source, ": ", what));
}

bool plain(const std::string& name) {
  return !name.empty() && name[0] != '.' && name.size() < 256 && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos && name.find('\n') == std::string::npos;
}

void check_files(const Index& index, const std::string& source) {
  std::set<std::string> names{kIndexFile, kChecksumsFile};
  for (const auto& file : index.files) {
    if (!plain(file.name)) damaged(source, base::str("file name: got \"", file.name, "\", allowed plain names"));
    if (!names.insert(file.name).second) damaged(source, base::str("file ", file.name, " is listed twice"));
    if (file.data_begin > file.bytes) damaged(source, base::str("file ", file.name, ": its data begin behind its end"));
    if (file.chunks.size() != file.bytes / kChunkBytes + (file.bytes % kChunkBytes != 0)) {
      damaged(source, base::str("file ", file.name, ": got ", file.chunks.size(), " checksums for ", file.bytes, " bytes"));
    }
  }
}

void check_parameters(const Index& index, const std::string& source) {
  std::set<std::string> names;
  for (const auto& parameter : index.parameters) {
    if (!names.insert(parameter.name).second) damaged(source, base::str("parameter ", parameter.name, " is listed twice"));
    int64_t elements = 1;
    for (const int64_t extent : parameter.shape) {
      // 2^58 elements of 16 bytes are still a number of bytes.
      if (extent < 0 || (extent > 0 && elements > (int64_t{1} << 58) / extent)) damaged(source, base::str("shape of ", parameter.name));
      elements *= extent;
    }
  }
}

void check_place(const Index& index, size_t file, uint64_t offset, uint64_t bytes, const std::string& source, const std::string& what) {
  if (file >= index.files.size()) damaged(source, base::str(what, ": got file number ", file, " of ", index.files.size()));
  const auto& entry = index.files[file];
  if (offset < entry.data_begin || offset > entry.bytes || bytes > entry.bytes - offset) {
    damaged(source, base::str(what, ": got bytes ", offset, " to ", offset + bytes, " of ", entry.name, ", allowed ", entry.data_begin,
                              " to ", entry.bytes));
  }
}

// The pieces of one kind of one parameter.
void check_cover(const ParameterEntry& parameter, std::span<const Piece> pieces, const std::string& source) {
  int64_t covered = 0;
  for (const auto& piece : pieces) {
    if (piece.begin != covered || piece.count < 0 || piece.count > parameter.elements() - covered) {
      damaged(source, base::str(piece.kind, " of ", parameter.name, ": got a piece of ", piece.count, " elements at ", piece.begin,
                                ", allowed one at ", covered, " of ", parameter.elements(), " without gap or overlap"));
    }
    covered += piece.count;
  }
  if (covered != parameter.elements()) {
    damaged(source, base::str(pieces.empty() ? "value" : pieces.front().kind, " of ", parameter.name, ": got ", covered,
                              " elements, allowed ", parameter.elements(), "; a shard is missing"));
  }
}

void check_pieces(Index& index, const std::string& source) {
  for (const auto& piece : index.pieces) {
    if (piece.parameter >= index.parameters.size()) damaged(source, "a piece of no parameter");
    const auto& parameter = index.parameters[piece.parameter];
    const bool state = std::find(index.state_names.begin(), index.state_names.end(), piece.kind) != index.state_names.end();
    if (piece.kind != kValue && (!state || parameter.role != Role::kTrained)) {
      damaged(source, base::str("parameter ", parameter.name, ": got a piece of kind \"", piece.kind, "\""));
    }
    if (piece.count < 0 || piece.begin < 0 || piece.count > parameter.elements()) {
      damaged(source, base::str("parameter ", parameter.name, ": a piece of ", piece.count, " elements"));
    }
    check_place(index, piece.file, piece.offset, piece.bytes(), source, parameter.name);
  }
  // Empty pieces hold nothing and would make the order ambiguous.
  std::erase_if(index.pieces, [](const Piece& piece) { return piece.count == 0; });
  std::sort(index.pieces.begin(), index.pieces.end(),
            [](const Piece& a, const Piece& b) { return std::tie(a.parameter, a.kind, a.begin) < std::tie(b.parameter, b.kind, b.begin); });
  std::vector<bool> has_values(index.parameters.size(), false);
  for (size_t first = 0; first < index.pieces.size();) {
    size_t last = first;
    while (last < index.pieces.size() && index.pieces[last].parameter == index.pieces[first].parameter &&
           index.pieces[last].kind == index.pieces[first].kind) {
      ++last;
    }
    check_cover(index.parameters[index.pieces[first].parameter], std::span(index.pieces).subspan(first, last - first), source);
    if (index.pieces[first].kind == kValue) has_values[index.pieces[first].parameter] = true;
    first = last;
  }
  for (size_t i = 0; i < index.parameters.size(); ++i) {
    if (!has_values[i]) check_cover(index.parameters[i], {}, source);
  }
}

}  // namespace

const char* role_name(Role role) {
  switch (role) {
    case Role::kTrained:
      return "trained";
    case Role::kFrozen:
      return "frozen";
    case Role::kBuffer:
      return "buffer";
  }
  return "?";
}

int64_t ParameterEntry::elements() const {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

void check_index(Index& index, const std::string& source) {
  if (index.world_size < 1) damaged(source, base::str("world_size: got ", index.world_size, ", allowed 1 or more"));
  check_files(index, source);
  check_parameters(index, source);
  check_pieces(index, source);
  for (const auto& generator : index.generators) {
    if (generator.rank < 0 || generator.rank >= index.world_size) damaged(source, base::str("random generator of rank ", generator.rank));
    check_place(index, generator.file, generator.offset, generator.bytes, source, base::str("random generator of rank ", generator.rank));
  }
}

std::string checksums_text(const Index& index, const Hash& hash_of_index) {
  std::string text = hex_of(hash_of_index) + "  " + kIndexFile + "\n";
  for (const auto& file : index.files) text += hex_of(file.hash) + "  " + file.name + "\n";
  return text;
}

}  // namespace deepspeed::store
