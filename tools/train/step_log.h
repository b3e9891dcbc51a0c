// One JSON object per optimizer step, written and flushed at once.
#pragma once

#include <cstdio>
#include <string>

namespace deepspeed::train {

struct StepReport;

class StepLog {
 public:
  // Appends when `resume`, else starts a new file. Throws Error(kFile).
  StepLog(const std::string& path, bool resume);
  ~StepLog();
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;
  void write(const StepReport& report, double loss_scale);

 private:
  std::string path_;
  std::FILE* file_;
};

}  // namespace deepspeed::train
