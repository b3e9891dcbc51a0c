#include "launcher/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace deepspeed::launcher {
namespace {

// Parent of a process, or 0. In /proc/PID/stat the name, in parentheses, may hold anything; the fields after the last ')' are state, parent.
pid_t parent_of(const char* pid) {
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/%s/stat", pid);
  const int fd = open(path.data(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  std::array<char, 512> text{};
  const ssize_t size = read(fd, text.data(), text.size() - 1);
  close(fd);
  if (size <= 0) return 0;
  const char* after_name = std::strrchr(text.data(), ')');
  int parent = 0;
  char state = 0;
  return after_name && std::sscanf(after_name + 1, " %c %d", &state, &parent) == 2 ? parent : 0;
}

}  // namespace

std::vector<pid_t> descendants_of(pid_t root) {
  std::vector<std::pair<pid_t, pid_t>> processes;  // pid, parent
  if (DIR* folder = opendir("/proc")) {
    while (const dirent* entry = readdir(folder)) {
      if (!std::isdigit(static_cast<unsigned char>(entry->d_name[0]))) continue;
      if (const pid_t parent = parent_of(entry->d_name)) processes.emplace_back(std::atoi(entry->d_name), parent);
    }
    closedir(folder);
  }
  std::vector<pid_t> found = {root};
  for (size_t i = 0; i < found.size(); ++i) {
    for (const auto& [pid, parent] : processes) {
      if (parent == found[i] && std::find(found.begin(), found.end(), pid) == found.end()) found.push_back(pid);
    }
  }
  found.erase(found.begin());
  return found;
}

void signal_descendants(int signal) {
  for (const pid_t pid : descendants_of(getpid())) kill(pid, signal);
}

void kill_descendants() {
  while (true) {
    pid_t reaped = 0;
    while ((reaped = waitpid(-1, nullptr, WNOHANG)) > 0) {
    }
    if (reaped < 0 && errno == ECHILD) return;
    signal_descendants(SIGKILL);
    const timespec pause = {0, 5'000'000};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace deepspeed::launcher
