// ds_train: fine-tunes a language model with ZeRO.
#include <malloc.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "deepspeed/error.h"
#include "train/options.h"
#include "train/trainer.h"

namespace {

void on_signal(int number) { deepspeed::train::stop_signal = number; }

// Where torchrun looks for the cause of a failure.
void tell_torchrun(const char* message) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (!path || !*path) return;
  nlohmann::json report;
  report["message"] = {{"message", message}, {"extraInfo", {{"timestamp", std::to_string(std::time(nullptr))}}}};
  std::ofstream(path) << report.dump();
}

// Other ranks may wait for this one in destructors; leaving at once is what tells them.
[[noreturn]] void fail(const char* message, int status) {
  std::fprintf(stderr, "%s\n", message);
  tell_torchrun(message);
  std::fflush(nullptr);
  std::_Exit(status);
}

}  // namespace

int main(int argc, char** argv) {
  // Large temporaries come back every step; giving their pages to the system and taking fresh ones would cost more than computing in them.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  deepspeed::train::Options options;
  int status = 0;
  if (!deepspeed::train::parse_options(argc, argv, &options, &status)) return status;
  try {
    deepspeed::train::Trainer trainer(std::move(options));
    // From here on a signal means: save, then end. While ranks still wait for each other it simply ends this one.
    std::signal(SIGTERM, on_signal);
    std::signal(SIGINT, on_signal);
    return trainer.run();
  } catch (const deepspeed::Error& error) {
    fail(error.what(), deepspeed::exit_status(error));
  } catch (const std::exception& error) {
    fail(error.what(), 1);
  }
}
