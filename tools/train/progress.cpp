#include "train/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace deepspeed::train {
namespace {

bool terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) && !(term && std::strcmp(term, "dumb") == 0);
}

int width() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 100;
}

std::string clock(double seconds) {
  const auto total = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  char text[32];
  if (total >= 3600) {
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", static_cast<long long>(total / 3600), static_cast<long long>(total / 60 % 60),
                  static_cast<long long>(total % 60));
  } else {
    std::snprintf(text, sizeof text, "%02lld:%02lld", static_cast<long long>(total / 60), static_cast<long long>(total % 60));
  }
  return text;
}

}  // namespace

Progress::Progress(const std::string& style, int64_t first, int64_t last, int64_t lines_every)
    : bar_(style == "bar" || (style == "auto" && terminal())),
      lines_(style == "lines" || (style == "auto" && !terminal())),
      colour_(terminal() && !std::getenv("NO_COLOR")),
      first_(first),
      last_(last),
      every_(std::max<int64_t>(lines_every, 1)) {}

void Progress::show(const StepReport& r) {
  // The first step pays for warming up and would spoil the estimate.
  const bool fresh = r.step <= first_ + 1;
  smooth_step_s_ = fresh ? r.step_s : 0.9 * smooth_step_s_ + 0.1 * r.step_s;
  smooth_tokens_ = fresh ? r.tokens_per_s : 0.9 * smooth_tokens_ + 0.1 * r.tokens_per_s;
  const double eta = smooth_step_s_ * static_cast<double>(last_ - r.step);
  char text[256];
  char norm[32];
  if (r.skipped) {
    std::snprintf(norm, sizeof norm, "skipped");
  } else {
    std::snprintf(norm, sizeof norm, "%.3f", r.grad_norm);
  }
  std::snprintf(text, sizeof text, "step %lld/%lld | loss %.4f | norm %s | lr %.3g | %.0f tok/s | %.0f MB | eta %s",
                static_cast<long long>(r.step), static_cast<long long>(last_), r.loss, norm, r.lr, smooth_tokens_, r.rss_mb,
                clock(eta).c_str());
  if (bar_) {
    const double share = static_cast<double>(r.step - first_ + 1) / static_cast<double>(std::max<int64_t>(last_ - first_ + 1, 1));
    const int room = std::clamp(width() - static_cast<int>(std::strlen(text)) - 10, 0, 40);
    const int filled = static_cast<int>(share * room);
    std::string bar;
    for (int i = 0; i < room; ++i) bar += i < filled ? "█" : "░";
    std::fprintf(stderr, "\r\033[K%s%3.0f%% %s%s %s", colour_ ? "\033[32m" : "", share * 100, bar.c_str(), colour_ ? "\033[0m" : "", text);
    line_open_ = true;
    if (r.step == last_) pause();
  } else if (lines_ && (r.step == first_ || r.step == last_ || r.step % every_ == 0)) {
    std::fprintf(stderr, "%s\n", text);
  }
  std::fflush(stderr);
}

void Progress::pause() {
  if (line_open_) std::fputc('\n', stderr);
  line_open_ = false;
}

}  // namespace deepspeed::train
