// Token files of Megatron-LM and DeepSpeed ("mmap indexed dataset"): PREFIX.bin holds tokens, PREFIX.idx says where sequences start.
//
//   .idx  byte 0   "MMIDIDX\0\0"
//         byte 9   uint64 version, 1
//         byte 17  uint8  element type: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16 (Megatron-LM), 6 u16, 7 u32, 8 u64 (DeepSpeed)
//         byte 18  uint64 number of sequences S
//         byte 26  uint64 number of document marks D
//         byte 34  int32 [S] tokens of each sequence
//                  int64 [S] byte in .bin where each starts
//                  int64 [D] sequence at which each document starts; 0 first, S last
//
// All little endian, nothing aligned, nothing after. docs/formats/indexed-dataset.md has the details.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/mapped_file.h"
#include "formats/output_file.h"

namespace deepspeed::formats {

// Element types. Megatron-LM and DeepSpeed number the unsigned ones differently; the reader tells them apart by the size of .bin.
enum class TokenType { kU8, kI8, kI16, kI32, kI64, kU16, kU32, kU64 };

size_t token_size(TokenType type);  // bytes

// An open data set. Checked in full when opened; thread safe for reading; MappedFile's warning about shortened files holds.
class IndexedDataset {
 public:
  // Throws Error(kFile) or Error(kDataFormat) naming the file.
  explicit IndexedDataset(const std::string& prefix);
  // True when both files of `prefix` are there.
  static bool exists(const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  TokenType type() const { return type_; }
  int64_t sequences() const { return sequences_; }
  int64_t documents() const { return documents_; }  // 0 when the file marks none
  int64_t tokens() const { return tokens_; }        // over all sequences

  int64_t sequence_length(int64_t sequence) const;  // tokens
  std::span<const std::byte> sequence(int64_t sequence) const;
  int64_t document_begin(int64_t document) const;  // its first sequence; document_begin(documents()) is sequences()

  // True when the sequences lie in order and back to back, so that the whole file is one run of tokens.
  bool contiguous() const { return contiguous_; }
  // Widens tokens [first, first + out.size()) of that run. Throws Error(kUsage) beyond the end or when not contiguous, Error(kDataFormat)
  // for a value above the largest int64.
  void read(int64_t first, std::span<int64_t> out) const;

 private:
  int32_t length_at(int64_t sequence) const;
  int64_t pointer_at(int64_t sequence) const;
  int64_t mark_at(int64_t mark) const;
  void check_marks() const;

  std::string prefix_;
  MappedFile index_;
  MappedFile data_;
  TokenType type_ = TokenType::kI32;
  int64_t sequences_ = 0;
  int64_t documents_ = 0;
  int64_t tokens_ = 0;
  bool contiguous_ = true;
};

// Writes both files; they appear at finish(), the index last. Throws Error(kFile).
class IndexedDatasetWriter {
 public:
  IndexedDatasetWriter(const std::string& prefix, TokenType type);

  // One sequence. Throws Error(kUsage) for a token that `type` cannot hold.
  void add(std::span<const int64_t> tokens);
  // The sequences since the last call are one document.
  void end_document();
  void finish(bool durable);

 private:
  std::string prefix_;
  TokenType type_;
  std::unique_ptr<OutputFile> data_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> marks_ = {0};
  std::vector<std::byte> buffer_;
};

}  // namespace deepspeed::formats
