#include "launcher/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "launcher/process_tree.h"

namespace deepspeed::launcher {
namespace {

using Kind = KeeperReport::Kind;
using Stage = KeeperReport::Stage;

// How long what a rank left behind may take to end after SIGTERM.
constexpr int64_t kOffspringGraceNs = 1'000'000'000;

int64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

struct StartError {
  Stage stage;
  int error;
};

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (const std::string& text : texts) list.push_back(const_cast<char*>(text.c_str()));
  list.push_back(nullptr);
  return list;
}

[[noreturn]] void report_and_exit(int fd, Stage stage) {
  const StartError failure = {stage, errno};
  [[maybe_unused]] const auto written = write(fd, &failure, sizeof failure);
  _exit(127);
}

// In the rank's process, up to exec. `sync` closes on exec; bytes in it mean failure.
[[noreturn]] void become_rank(const KeeperSetup& setup, pid_t keeper, int sync) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != keeper) _exit(127);  // the keeper died before the line above
  const std::array<int, 3> streams = {setup.input, setup.output, setup.error};
  for (int target = 0; target < 3; ++target) {
    if (streams[target] >= 0) dup2(streams[target], target);
  }
  if (!setup.process->cores.empty()) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int core : setup.process->cores) CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) report_and_exit(sync, Stage::kBindCores);
  }
  if (setup.restore_sigpipe) signal(SIGPIPE, SIG_DFL);
  const auto command = pointers(setup.process->command);
  const auto environment = pointers(setup.process->environment);
  sigprocmask(SIG_SETMASK, &setup.original_mask, nullptr);
  execvpe(command[0], command.data(), environment.data());
  report_and_exit(sync, Stage::kExecute);
}

class Keeper {
 public:
  explicit Keeper(const KeeperSetup& setup) : setup_(setup) {}

  [[noreturn]] void run() {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    setpgid(0, 0);
    for (int fd : setup_.foreign) close(fd);
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, nullptr);
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    signals_ = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    start();
    while (reap()) {
      const int64_t left_ns = deadline_ns_ - now_ns();
      if (deadline_ns_ > 0 && left_ns <= 0) kill_all();
      std::array<pollfd, 2> set = {{{setup_.control, POLLIN, 0}, {signals_, POLLIN, 0}}};
      poll(set.data(), set.size(), deadline_ns_ > 0 ? static_cast<int>(left_ns / 1'000'000) + 1 : -1);
      if (set[0].revents) obey();
      if (set[1].revents) drain_signals();
    }
    _exit(0);
  }

 private:
  void report(Kind kind, int value, Stage stage = Stage::kFork) {
    KeeperReport message;
    message.kind = kind;
    message.stage = stage;
    message.pid = rank_;
    message.value = value;
    message.time_ns = now_ns();
    // Without a launcher to read it (EPIPE) there is nobody to tell; the control pipe ends too then.
    [[maybe_unused]] const auto written = write(setup_.status, &message, sizeof message);
  }

  void start() {
    std::array<int, 2> sync{};
    const pid_t keeper = getpid();
    if (pipe2(sync.data(), O_CLOEXEC) != 0 || (rank_ = fork()) < 0) {
      report(Kind::kStartFailed, errno);
      _exit(1);
    }
    if (rank_ == 0) become_rank(setup_, keeper, sync[1]);
    close(sync[1]);
    // The keeper must not keep the streams open, or their end would never be seen.
    for (int fd : {setup_.input, setup_.output}) {
      if (fd >= 0) close(fd);
    }
    if (setup_.error >= 0 && setup_.error != setup_.output) close(setup_.error);
    StartError failure{};
    ssize_t size = 0;
    while ((size = read(sync[0], &failure, sizeof failure)) < 0 && errno == EINTR) {
    }
    close(sync[0]);
    if (size == sizeof failure) {
      report(Kind::kStartFailed, failure.error, failure.stage);
    } else {
      report(Kind::kStarted, 0);
    }
  }

  // Collects what ended; false when the rank and everything below it is gone.
  bool reap() {
    int status = 0;
    pid_t pid = 0;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
      if (pid != rank_ || rank_gone_) continue;
      rank_gone_ = true;
      report(Kind::kExited, status);
      if (waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD) return false;
      signal_descendants(SIGTERM);
      deadline_ns_ = now_ns() + kOffspringGraceNs;
    }
    return !(pid < 0 && errno == ECHILD);
  }

  // Passes on what the launcher wrote.
  void obey() {
    std::array<unsigned char, 64> bytes{};
    const ssize_t size = read(setup_.control, bytes.data(), bytes.size());
    if (size < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (size <= 0) kill_all();
    for (ssize_t i = 0; i < size; ++i) {
      if (bytes[i] == SIGKILL) kill_all();
      if (rank_gone_) {
        signal_descendants(bytes[i]);
      } else if (kill(-rank_, bytes[i]) != 0) {
        kill(rank_, bytes[i]);  // it made itself part of another process group
      }
    }
  }

  [[noreturn]] void kill_all() {
    if (!rank_gone_) {
      signal_descendants(SIGKILL);
      kill(-rank_, SIGKILL);  // also where /proc is not mounted
      kill(rank_, SIGKILL);
      int status = 0;
      if (waitpid(rank_, &status, 0) == rank_) report(Kind::kExited, status);
    }
    kill_descendants();
    _exit(0);
  }

  void drain_signals() {
    signalfd_siginfo info{};
    while (read(signals_, &info, sizeof info) == sizeof info) {
    }
  }

  const KeeperSetup& setup_;
  int signals_ = -1;
  pid_t rank_ = 0;
  bool rank_gone_ = false;
  int64_t deadline_ns_ = 0;  // when what the rank left behind is killed; 0: not waiting for that
};

}  // namespace

void run_keeper(const KeeperSetup& setup) { Keeper(setup).run(); }

}  // namespace deepspeed::launcher
