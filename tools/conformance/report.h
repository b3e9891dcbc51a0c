// What a case came to, and the lines that say so.
#pragma once

#include <cstdint>
#include <string>

namespace deepspeed::conformance {

struct Outcome {
  enum class Kind { kOk, kFail, kSkip } kind = Kind::kOk;
  std::string
      detail;  // ok: which value matched, where there are several; fail: got, expected, tolerance; skip: the feature that is not built

  static Outcome ok(std::string detail = "") { return {Kind::kOk, std::move(detail)}; }
  static Outcome fail(std::string detail) { return {Kind::kFail, std::move(detail)}; }
  static Outcome skip(std::string feature) { return {Kind::kSkip, std::move(feature)}; }
};

// Counts outcomes and prints one line each to stdout.
class Report {
 public:
  void add(const std::string& name, const Outcome& outcome);
  // "N passed, N failed, N skipped". Returns the exit status.
  int finish() const;

 private:
  int64_t passed_ = 0, failed_ = 0, skipped_ = 0;
};

}  // namespace deepspeed::conformance
