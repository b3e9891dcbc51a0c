#include "launcher/launch.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/log.h"
#include "base/text.h"
#include "deepspeed/error.h"
#include "launcher/master_port.h"
#include "launcher/process_tree.h"
#include "launcher/relay.h"
#include "launcher/spawn.h"
#include "launcher/supervise.h"

namespace deepspeed::launcher {
namespace {

// A file with the launcher's process id, for scripts that end it later. Removed with this object.
class PidFile {
 public:
  PidFile() : path_((std::filesystem::temp_directory_path() / base::str(getpid(), ".deepspeed")).string()) {
    unlink(path_.c_str());  // of an earlier process with the same id
    const int fd = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    const std::string text = base::str(getpid());
    const bool written = fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    if (!written) {
      throw Error(ErrorCode::kEnvironment, "launcher",
                  base::str("--save_pid: writing ", path_, ": got \"", std::strerror(errno), "\", allowed success"));
    }
    close(fd);
  }
  ~PidFile() { unlink(path_.c_str()); }
  PidFile(const PidFile&) = delete;
  PidFile& operator=(const PidFile&) = delete;

 private:
  std::string path_;
};

std::vector<pid_t> children_so_far() {
  if (waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD) return {};
  return descendants_of(getpid());
}

// With stdin, stdout or stderr closed, pipes would take their numbers.
void fill_standard_streams() {
  int fd = 0;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd > STDERR_FILENO) close(fd);
}

MasterPort choose_port(const LaunchOptions& options, const base::Environment& environment, int ranks) {
  std::optional<int> wanted;
  if (options.master_port > 0) wanted = options.master_port;
  if (!wanted) {
    if (const auto port = environment.integer("MASTER_PORT", 1, 65535)) wanted = static_cast<int>(*port);
  }
  return ranks == 1 && wanted ? MasterPort::unchecked(*wanted) : MasterPort::choose(wanted);
}

}  // namespace

int launch(const LaunchRequest& request) {
  fill_standard_streams();
  const auto environment = base::Environment::of_process();
  const Machine machine = inspect_machine(environment);
  const int ranks = number_of_ranks(request.options, machine);
  const MasterPort port = choose_port(request.options, environment, ranks);
  RankPlan plan = make_rank_plan(request.options, machine, environment, port.port());
  base::log_info(plan.summary);
  if (!plan.warning.empty()) base::log_warning(plan.warning);

  std::optional<PidFile> pid_file;
  if (request.save_pid) pid_file.emplace();
  SuperviseOptions supervision;
  supervision.grace = request.grace;
  supervision.outsiders = children_so_far();

  SpawnOptions streams;
  streams.log_directory = request.log_directory;
  streams.capture = request.prefix && ranks > 1 && request.log_directory.empty();
  if (streams.capture) {
    for (RankProcess& rank : plan.ranks) rank.environment.push_back("DS_LINES_HAVE_RANK=1");
  }
  const auto spawned = spawn_ranks(plan, streams, handled_signals());

  Relay relay;
  for (const SpawnedRank& rank : spawned) {
    if (rank.output < 0) continue;
    const std::string prefix = base::str("[rank ", rank.rank, "] ");
    relay.add(prefix, rank.output, STDOUT_FILENO);
    relay.add(prefix, rank.error, STDERR_FILENO);
  }
  return supervise(spawned, relay, supervision);
}

}  // namespace deepspeed::launcher
