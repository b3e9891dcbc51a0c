#include "conformance/report.h"

#include <cstdio>

namespace deepspeed::conformance {

void Report::add(const std::string& name, const Outcome& outcome) {
  const char* word = "ok";
  switch (outcome.kind) {
    case Outcome::Kind::kOk:
      ++passed_;
      break;
    case Outcome::Kind::kFail:
      word = "FAIL";
      ++failed_;
      break;
    case Outcome::Kind::kSkip:
      word = "skip";
      ++skipped_;
      break;
  }
  std::printf("%-4s %s%s%s\n", word, name.c_str(), outcome.detail.empty() ? "" : ": ", outcome.detail.c_str());
  std::fflush(stdout);
}

int Report::finish() const {
  std::printf("%lld passed, %lld failed, %lld skipped\n", static_cast<long long>(passed_), static_cast<long long>(failed_),
              static_cast<long long>(skipped_));
  return failed_ == 0 ? 0 : 1;
}

}  // namespace deepspeed::conformance
