#include "launcher/supervise.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/text.h"
#include "launcher/keeper.h"
#include "launcher/process_tree.h"

namespace deepspeed::launcher {
namespace {

using base::str;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using Kind = KeeperReport::Kind;
using Stage = KeeperReport::Stage;

constexpr milliseconds kFailureGrace{1500};
// A second signal so soon is the same wish: tools such as timeout(1) signal a process and its group.
constexpr milliseconds kSameSignal{250};
// Killed processes that still are there after this hang in the kernel.
constexpr milliseconds kGiveUp{10000};
constexpr int kStartFailedStatus = 4;

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? str("SIG", name) : str("signal ", signal);
}

class Supervisor {
 public:
  Supervisor(const std::vector<SpawnedRank>& ranks, Relay& relay, const SuperviseOptions& options) : relay_(relay), options_(options) {
    for (const SpawnedRank& rank : ranks) ranks_.push_back({rank});
    sigset_t signals = handled_signals();
    sigaddset(&signals, SIGCHLD);
    signals_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  }

  int run() {
    while (!done()) {
      std::vector<pollfd> set = {{signals_, POLLIN, 0}};
      for (const Rank& rank : ranks_) set.push_back({rank.gone ? -1 : rank.spawned.status, POLLIN, 0});
      const size_t first = set.size();
      int wait_ms = relay_.append_poll(set);
      if (deadline_) {
        const auto left = std::chrono::duration_cast<milliseconds>(*deadline_ - Clock::now()).count() + 1;
        const int left_ms = static_cast<int>(std::max<int64_t>(left, 0));
        wait_ms = wait_ms < 0 ? left_ms : std::min(wait_ms, left_ms);
      }
      if (poll(set.data(), set.size(), wait_ms) < 0 && errno != EINTR) break;
      relay_.handle(set, first);
      take_reports();
      take_signals();
      if (deadline_ && Clock::now() >= *deadline_) deadline_passed();
      if (all_gone()) finish();
    }
    return status_;
  }

 private:
  struct Rank {
    SpawnedRank spawned;
    pid_t pid = 0;
    bool ended = false;  // the rank itself
    bool gone = false;   // with everything below it, and its keeper
  };

  bool all_gone() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.gone; });
  }
  bool done() const { return finished_ && (relay_.is_flushed() || drop_output_); }

  void error(const std::string& text) { relay_.note("[deepspeed] error: " + text); }

  void send(const Rank& rank, int signal) {
    if (rank.gone) return;
    const unsigned char byte = static_cast<unsigned char>(signal);
    // A full pipe or a dead keeper: the keeper has enough to do, or is seen as gone in a moment.
    [[maybe_unused]] const auto written = write(rank.spawned.control, &byte, 1);
  }
  void send_all(int signal) {
    for (const Rank& rank : ranks_) send(rank, signal);
  }

  // Reads what the keepers say, and takes it in the order in which it happened.
  void take_reports() {
    struct Entry {
      size_t rank;
      KeeperReport report;
    };
    std::vector<Entry> entries;
    std::vector<size_t> ended;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i].gone) continue;
      KeeperReport report;
      ssize_t size = 0;
      while ((size = read(ranks_[i].spawned.status, &report, sizeof report)) == sizeof report) entries.push_back({i, report});
      if (size == 0) ended.push_back(i);
    }
    std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.report.time_ns < b.report.time_ns; });
    for (const Entry& entry : entries) take_report(ranks_[entry.rank], entry.report);
    for (size_t i : ended) keeper_ended(ranks_[i]);
  }

  void take_report(Rank& rank, const KeeperReport& report) {
    rank.pid = report.pid;
    if (report.kind == Kind::kStarted || rank.ended) return;
    rank.ended = true;
    if (report.kind == Kind::kStartFailed) {
      const char* what = report.stage == Stage::kFork        ? "making its process"
                         : report.stage == Stage::kBindCores ? "binding it to its cores"
                                                             : "running the program";
      failed(rank, kStartFailedStatus, str("could not be started (", what, ": ", std::strerror(report.value), ")"));
    } else if (WIFSIGNALED(report.value)) {
      const int signal = WTERMSIG(report.value);
      failed(rank, 128 + signal, str("was ended by ", signal_name(signal), WCOREDUMP(report.value) ? " (core dumped)" : ""), signal);
    } else if (WEXITSTATUS(report.value) != 0) {
      failed(rank, WEXITSTATUS(report.value), str("exited with code ", WEXITSTATUS(report.value)));
    }
  }

  void keeper_ended(Rank& rank) {
    rank.gone = true;
    close(rank.spawned.control);
    close(rank.spawned.status);
    if (rank.ended) return;
    rank.ended = true;
    keeper_killed_ = true;
    failed(rank, 128 + SIGKILL, "lost its keeper process, which something killed");
  }

  void failed(const Rank& rank, int status, const std::string& how, int signal = 0) {
    const bool is_first = status_ == 0;
    // What the launcher itself killed ends with the reason for killing.
    if (is_first) status_ = killed_ && asked_signal_ ? 128 + asked_signal_ : status;
    const bool expected = asked_signal_ && (signal == asked_signal_ || status == 128 + asked_signal_ || killed_);
    if (asked_signal_ ? expected : !is_first) return;
    const auto others = std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& other) { return !other.ended; });
    std::string text = str("rank ", rank.spawned.rank, " (pid ", rank.pid, ") ", how);
    if (!rank.spawned.log_file.empty()) text += str(", its output is in ", rank.spawned.log_file);
    if (!asked_signal_ && others > 0) text += str("; stopping the other ", others, others == 1 ? " rank" : " ranks");
    error(text);
    if (asked_signal_) return;
    stopping_ = true;
    for (const Rank& other : ranks_) {
      if (!other.ended) send(other, SIGTERM);
    }
    if (!killed_) deadline_ = Clock::now() + kFailureGrace;
  }

  void take_signals() {
    signalfd_siginfo info{};
    while (read(signals_, &info, sizeof info) == sizeof info) take_signal(static_cast<int>(info.ssi_signo));
    for (const Rank& rank : ranks_) waitpid(rank.spawned.keeper, nullptr, WNOHANG);
  }

  void take_signal(int signal) {
    switch (signal) {
      case SIGCHLD:
        return;
      case SIGUSR1:
      case SIGUSR2:
        send_all(signal);
        return;
      case SIGTSTP:
        send_all(SIGSTOP);
        raise(SIGSTOP);
        send_all(SIGCONT);
        return;
      default:
        break;
    }
    const auto now = Clock::now();
    if (asked_signal_ && now - asked_at_ < kSameSignal) return;
    if (finished_) {
      drop_output_ = true;  // only a reader that does not read keeps us here
    } else if (asked_signal_ || stopping_) {
      error(str("got ", signal_name(signal), " while the ranks were ending: killing them"));
      kill_now();
    } else {
      asked_signal_ = signal;
      asked_at_ = now;
      deadline_ = now + options_.grace;
      send_all(signal);
    }
  }

  void kill_now() {
    killed_ = true;
    send_all(SIGKILL);
    deadline_ = Clock::now() + kGiveUp;
  }

  void deadline_passed() {
    std::string list;
    for (const Rank& rank : ranks_) {
      if (!rank.gone) list += str(list.empty() ? "" : ", ", rank.spawned.rank);
    }
    if (!killed_) {
      error(str("killing what is left of rank ", list, ": no end after ", signal_name(asked_signal_ ? asked_signal_ : SIGTERM)));
      kill_now();
      return;
    }
    error(str("rank ", list, " cannot be killed: a process hangs in the kernel"));
    if (status_ == 0) status_ = 128 + SIGKILL;
    for (Rank& rank : ranks_) rank.gone = true;
  }

  void finish() {
    if (finished_) return;
    finished_ = true;
    deadline_.reset();
    collect();
    if (keeper_killed_) sweep();
    relay_.finish_sources();
  }

  // Keepers end by themselves when nothing of their rank is left; collected, their processor time counts as the launcher's.
  void collect() {
    for (const Rank& rank : ranks_) {
      for (int round = 0; round < 50 && waitpid(rank.spawned.keeper, nullptr, WNOHANG) == 0; ++round) usleep(1000);
    }
  }

  // Processes of a rank whose keeper was killed have become ours.
  void sweep() {
    for (int round = 0; round < 100; ++round) {
      std::vector<pid_t> left = descendants_of(getpid());
      for (pid_t outsider : options_.outsiders) left.erase(std::remove(left.begin(), left.end(), outsider), left.end());
      if (left.empty()) return;
      for (pid_t pid : left) kill(pid, SIGKILL);
      usleep(5000);
      for (pid_t pid : left) waitpid(pid, nullptr, WNOHANG);
    }
  }

  Relay& relay_;
  const SuperviseOptions options_;
  std::vector<Rank> ranks_;
  int signals_ = -1;
  int status_ = 0;
  int asked_signal_ = 0;  // the user's wish to end
  Clock::time_point asked_at_;
  bool stopping_ = false;  // after a rank's failure
  bool killed_ = false;
  bool keeper_killed_ = false;
  bool finished_ = false;
  bool drop_output_ = false;
  std::optional<Clock::time_point> deadline_;
};

}  // namespace

sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP}) {
    struct sigaction action {};
    const bool ignored = sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
    if (!ignored) sigaddset(&set, signal);
  }
  return set;
}

int supervise(const std::vector<SpawnedRank>& ranks, Relay& relay, const SuperviseOptions& options) {
  return Supervisor(ranks, relay, options).run();
}

}  // namespace deepspeed::launcher
