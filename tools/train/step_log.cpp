#include "train/step_log.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "deepspeed/error.h"
#include "train/progress.h"

namespace deepspeed::train {

StepLog::StepLog(const std::string& path, bool resume) : path_(path) {
  const auto folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  file_ = std::fopen(path.c_str(), resume ? "ae" : "we");
  if (!file_) throw Error(ErrorCode::kFile, "ds_train", "--log_json " + path + ": " + std::strerror(errno));
}

StepLog::~StepLog() { std::fclose(file_); }

void StepLog::write(const StepReport& r, double loss_scale) {
  nlohmann::ordered_json line;
  line["step"] = r.step - 1;  // counted from 0, as the reference data does
  line["loss"] = r.loss;
  line["grad_norm"] = r.skipped ? nlohmann::ordered_json() : nlohmann::ordered_json(r.grad_norm);
  line["lr"] = r.lr;
  line["loss_scale"] = loss_scale;
  line["skipped"] = r.skipped;
  line["tokens_per_s"] = r.tokens_per_s;
  line["step_s"] = r.step_s;
  line["rss_mb"] = r.rss_mb;
  const std::string text = line.dump() + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0) {
    throw Error(ErrorCode::kFile, "ds_train", "--log_json " + path_ + ": " + std::strerror(errno));
  }
}

}  // namespace deepspeed::train
