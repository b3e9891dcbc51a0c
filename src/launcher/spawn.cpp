#include "launcher/spawn.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/text.h"
#include "deepspeed/error.h"
#include "launcher/keeper.h"

namespace deepspeed::launcher {
namespace {

[[noreturn]] void refuse(const std::string& what, int error) {
  throw Error(ErrorCode::kEnvironment, "launcher", base::str(what, ": got \"", std::strerror(error), "\", allowed success"));
}

struct Pipe {
  int read = -1;
  int write = -1;
};

// Pipe whose read or write end, the launcher's, does not block; the other end is a rank's or keeper's and blocks as usual.
Pipe make_pipe(bool reads_here) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) refuse("making a pipe", errno);
  const int ours = reads_here ? ends[0] : ends[1];
  fcntl(ours, F_SETFL, fcntl(ours, F_GETFL) | O_NONBLOCK);
  return {ends[0], ends[1]};
}

int open_file(const std::string& path, int flags) {
  const int fd = open(path.c_str(), flags | O_CLOEXEC, 0644);
  if (fd < 0) refuse(base::str("opening ", path), errno);
  return fd;
}

std::string log_file_stem(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) refuse(base::str("making the log directory ", directory), error.value());
  const time_t seconds = time(nullptr);
  tm local{};
  localtime_r(&seconds, &local);
  std::array<char, 32> stamp{};
  strftime(stamp.data(), stamp.size(), "%Y%m%d%H%M%S", &local);
  return base::str(directory, "/", stamp.data(), "_rank");
}

}  // namespace

std::vector<SpawnedRank> spawn_ranks(const RankPlan& plan, const SpawnOptions& options, const sigset_t& handled) {
  KeeperSetup setup;
  sigset_t blocked = handled;
  sigaddset(&blocked, SIGCHLD);
  sigprocmask(SIG_BLOCK, &blocked, &setup.original_mask);
  setup.restore_sigpipe = signal(SIGPIPE, SIG_IGN) != SIG_IGN;
  prctl(PR_SET_CHILD_SUBREAPER, 1);

  const std::string stem = options.log_directory.empty() ? std::string() : log_file_stem(options.log_directory);
  std::vector<SpawnedRank> spawned;
  for (const RankProcess& process : plan.ranks) {
    SpawnedRank rank;
    rank.rank = process.rank;
    const Pipe control = make_pipe(false);
    const Pipe status = make_pipe(true);
    rank.control = control.write;
    rank.status = status.read;
    setup.process = &process;
    setup.control = control.read;
    setup.status = status.write;
    setup.input = process.rank == 0 ? -1 : open_file("/dev/null", O_RDONLY);
    if (!stem.empty()) {
      rank.log_file = base::str(stem, process.rank, ".log");
      setup.output = setup.error = open_file(rank.log_file, O_WRONLY | O_CREAT | O_APPEND);
    } else if (options.capture) {
      const Pipe output = make_pipe(true);
      const Pipe error = make_pipe(true);
      rank.output = output.read;
      rank.error = error.read;
      setup.output = output.write;
      setup.error = error.write;
    }
    for (int fd : {rank.control, rank.status, rank.output, rank.error}) {
      if (fd >= 0) setup.foreign.push_back(fd);
    }
    rank.keeper = fork();
    if (rank.keeper < 0) refuse(base::str("starting rank ", process.rank), errno);
    if (rank.keeper == 0) run_keeper(setup);
    close(setup.control);
    close(setup.status);
    if (setup.input >= 0) close(setup.input);
    if (setup.output >= 0) close(setup.output);
    if (setup.error >= 0 && setup.error != setup.output) close(setup.error);
    spawned.push_back(std::move(rank));
  }
  return spawned;
}

}  // namespace deepspeed::launcher
