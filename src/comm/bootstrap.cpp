// Joining a job: the store that ranks meet in, and the world group.
#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "accel/device.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/c10d_communicator.h"
#include "comm/gloo_backend.h"
#include "comm/hosts_communicator.h"
#include "comm/plugins.h"
#include "comm/shm_communicator.h"
#include "deepspeed/error.h"

namespace deepspeed {
namespace {

std::chrono::milliseconds timeout_of(const CommOptions& options) {
  if (options.timeout.count() > 0) return options.timeout;
  if (const char* minutes = std::getenv("DEEPSPEED_TIMEOUT")) {
    char* end = nullptr;
    const double value = std::strtod(minutes, &end);
    if (*minutes == '\0' || *end != '\0' || !(value > 0)) {
      throw Error(ErrorCode::kEnvironment, "comm",
                  base::str("DEEPSPEED_TIMEOUT: got \"", minutes, "\", allowed a number of minutes above 0"));
    }
    return std::chrono::milliseconds(static_cast<int64_t>(value * 60'000));
  }
  return std::chrono::minutes(30);
}

bool port_answers(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return false;
  bool answers = false;
  for (const addrinfo* a = found; a && !answers; a = a->ai_next) {
    const int fd = ::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) continue;
    answers = ::connect(fd, a->ai_addr, a->ai_addrlen) == 0;
    ::close(fd);
  }
  ::freeaddrinfo(found);
  return answers;
}

c10::intrusive_ptr<c10d::Store> join_store(const RankInfo& info, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(info.master_port);
  options.timeout = timeout;
  options.numWorkers = info.world_size;
  // torchrun's agent already serves a store at that address; hosting a second one would collide with it.
  const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  const bool agent_serves = agent && std::strcmp(agent, "True") == 0;
  options.isServer = info.rank == 0 && !agent_serves;
  options.waitWorkers = false;
  if (!options.isServer) {
    // The store's own client retries once a second; looking first keeps start-up short.
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (!port_answers(info.master_address, info.master_port)) {
      if (std::chrono::steady_clock::now() > deadline) {
        throw Error(
            ErrorCode::kCommTimeout, "comm",
            base::str("joining the job: no answer from ", info.master_address, ":", info.master_port, " in ", timeout.count(), " ms (rank ",
                      info.rank, " of ", info.world_size, "); is rank 0 running, and MASTER_ADDR and MASTER_PORT right?"));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  // The agent's store outlives a restart of the ranks; what an earlier attempt wrote must not be taken for this one's.
  const char* attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
  try {
    return c10::make_intrusive<c10d::PrefixStore>(base::str("deepspeed/", agent_serves && attempt ? attempt : "0"),
                                                  c10::make_intrusive<c10d::TCPStore>(info.master_address, options));
  } catch (const std::exception& error) {
    const std::string cause = error.what();
    throw Error(ErrorCode::kEnvironment, "comm",
                base::str("store at ", info.master_address, ":", info.master_port, ": ", cause.substr(0, cause.find('\n')), " (rank ",
                          info.rank, "); another job may use this port: choose one with --master_port"));
  }
}

// A call of the store while the ranks meet. Its own failures (a peer that never writes, a host that is gone) come as C++ stacks.
template <typename Call>
auto meeting(const std::string& key, int rank, int size, std::chrono::milliseconds timeout, const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    const std::string cause = error.what();
    throw Error(ErrorCode::kCommTimeout, "comm",
                base::str("joining the job: ", cause.substr(0, cause.find('\n')), " (rank ", rank, " of ", size, ", key ", key, ", limit ",
                          timeout.count(), " ms); did every rank start, and is rank 0 still there?"));
  }
}

// The store as the shared-memory domain needs it.
shm::Domain::Store text_store(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout) {
  return {[=](const std::string& key, const std::string& value) {
            meeting(key, rank, size, timeout, [&] {
              store->set(key, std::vector<uint8_t>(value.begin(), value.end()));
              return 0;
            });
          },
          [=](const std::string& key) {
            return meeting(key, rank, size, timeout, [&] {
              store->wait({key}, timeout);
              const auto bytes = store->get(key);
              return std::string(bytes.begin(), bytes.end());
            });
          }};
}

std::string backend_of(const CommOptions& options) {
  std::string backend = options.backend;
  const char* environment = std::getenv("DS_COMM_BACKEND");
  if (backend == "auto" && environment && *environment) backend = environment;
  for (const char* known : {"auto", "shm", "gloo", "nccl", "mpi", "shm+gloo", "shm+mpi"}) {
    if (backend == known) return backend;
  }
  throw Error(ErrorCode::kUsage, "comm",
              base::str("backend: got \"", backend, "\", allowed auto, shm, gloo, nccl, mpi, shm+gloo, shm+mpi"));
}

// Where a rank stands: hosts have as many ranks each, numbered one host after the other.
struct Place {
  int rank = 0, size = 1, locals = 1;
  int host() const { return rank / locals; }
  int local() const { return rank % locals; }
};

using Store = c10::intrusive_ptr<c10d::Store>;

// Everybody's verdict ("" is fine), the same on all ranks: the first one in rank order that is not fine, with the rank's number.
std::string verdict_of_all(const Store& store, const std::string& key, const Place& place, const std::string& mine,
                           std::chrono::milliseconds timeout) {
  const auto texts = text_store(store, place.rank, place.size, timeout);
  texts.set(base::str(key, "/", place.rank), mine);
  if (place.rank == 0) {
    std::string verdict;
    for (int rank = 0; rank < place.size; ++rank) {
      const std::string theirs = texts.get(base::str(key, "/", rank));
      if (!theirs.empty() && verdict.empty()) verdict = base::str("rank ", rank, ": ", theirs);
    }
    texts.set(key, verdict);
  }
  return texts.get(key);
}

// The shared memory of this host's ranks.
std::shared_ptr<shm::Domain> join_host(const Store& store, const Place& place, std::chrono::milliseconds timeout) {
  const auto own = c10::make_intrusive<c10d::PrefixStore>(base::str("host", place.host()), store);
  return std::make_shared<shm::Domain>(text_store(own, place.local(), place.locals, timeout), "shm", place.local(), place.locals, timeout);
}

// Shared memory where all ranks live on this host. Without `required`, ranks that may not read each other's memory get nullptr and use something slower.
std::shared_ptr<Communicator> join_shared_memory(const Store& store, int rank, int size, std::chrono::milliseconds timeout, bool required) {
  try {
    return std::make_shared<comm::ShmCommunicator>("world", join_host(store, {rank, size, size}, timeout), timeout);
  } catch (const Error& error) {
    if (required || error.code() != ErrorCode::kEnvironment) throw;
    if (rank == 0) base::log_warning(error.what(), "; ranks talk through Gloo instead, which is slower");
    return nullptr;
  }
}

// Shared memory inside each host and `between` among them. Without `required`, nullptr on all ranks where that cannot be.
std::shared_ptr<Communicator> join_hosts(const Store& store, const Place& place, const char* between, const comm::BackendFactory& factory,
                                         std::chrono::milliseconds timeout, bool required) {
  std::shared_ptr<shm::Domain> domain;
  std::string cause;
  try {
    domain = join_host(store, place, timeout);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kEnvironment) throw;
    cause = error.what();
  }
  const std::string refusal = verdict_of_all(store, "shared memory", place, cause, timeout);
  if (!refusal.empty()) {
    if (required) throw Error(ErrorCode::kEnvironment, "comm", base::str("backend shm+", between, ": ", refusal));
    if (place.rank == 0) base::log_warning(refusal, "; all ranks talk through Gloo instead, which is slower");
    return nullptr;
  }
  const int hosts = place.size / place.locals;
  comm::HostsCommunicator::Parts parts;
  parts.first = std::make_shared<comm::ShmCommunicator>("host", domain, timeout);
  parts.last = parts.first->duplicate("last");
  parts.domain = std::move(domain);
  parts.across =
      std::make_shared<comm::C10dCommunicator>(base::str("across.", place.local()), between, store, place.host(), hosts, timeout, factory);
  parts.flat = std::make_shared<comm::C10dCommunicator>("flat", between, store, place.rank, place.size, timeout, factory);
  return std::make_shared<comm::HostsCommunicator>("world", std::move(parts));
}

// Whether the ranks stand as Place says, on every rank; "" if so.
std::string layout_problem(const RankInfo& info) {
  if (info.local_world_size < 2) return "one rank on its host";
  if (info.world_size % info.local_world_size != 0) return base::str(info.local_world_size, " ranks on its host, of ", info.world_size);
  if (info.rank % info.local_world_size != info.local_rank) return base::str("local rank ", info.local_rank, " of ", info.local_world_size);
  return "";
}

}  // namespace

std::shared_ptr<SharedMemory> Communicator::share_memory(size_t, const std::string&) { return nullptr; }

std::shared_ptr<Communicator> init_distributed(const CommOptions& options) {
  return init_distributed(rank_info_from_environment(), options);
}

std::shared_ptr<Communicator> init_distributed(const RankInfo& info, const CommOptions& options) {
  base::set_log_rank(info.world_size > 1 ? info.rank : -1);
  const auto timeout = timeout_of(options);
  std::string backend = backend_of(options);
  const bool one_host = info.local_world_size == info.world_size;
  const bool chosen = backend != "auto";
  if (!chosen) backend = !accel::choose_device("auto", info.local_rank).is_cpu() ? "nccl" : one_host ? "shm" : "shm+gloo";
  if (backend == "shm" && !one_host) {
    throw Error(ErrorCode::kUsage, "comm",
                base::str("backend shm: got ", info.local_world_size, " of ", info.world_size,
                          " ranks on this host, allowed all on one host; choose shm+gloo or shm+mpi for several"));
  }
  if (info.world_size == 1) {
    return std::make_shared<comm::C10dCommunicator>("world", "none", nullptr, 0, 1, timeout, comm::BackendFactory{});
  }
  const auto store = join_store(info, timeout);
  if (backend == "shm") {
    if (auto communicator = join_shared_memory(store, info.rank, info.world_size, timeout, chosen)) return communicator;
    backend = "gloo";
  }
  if (backend.starts_with("shm+")) {
    const Place place{info.rank, info.world_size, std::max(1, info.local_world_size)};
    const std::string problem = verdict_of_all(store, "layout", place, layout_problem(info), timeout);
    const std::string between = backend.substr(4);
    if (problem.empty()) {
      const bool mpi = between == "mpi";
      auto communicator =
          join_hosts(store, place, mpi ? "mpi" : "gloo", mpi ? comm::mpi_factory() : comm::gloo_factory(one_host), timeout, chosen);
      if (communicator) return communicator;
    } else if (chosen) {
      throw Error(ErrorCode::kUsage, "comm",
                  base::str("backend ", backend, ": got ", problem,
                            "; allowed as many ranks, two or more, on each host, numbered one host after another"));
    }
    backend = between;
  }
  if (backend == "nccl")
    return std::make_shared<comm::C10dCommunicator>("world", "nccl", store, info.rank, info.world_size, timeout, comm::nccl_factory());
  if (backend == "mpi")
    return std::make_shared<comm::C10dCommunicator>("world", "mpi", store, info.rank, info.world_size, timeout, comm::mpi_factory());
  return std::make_shared<comm::C10dCommunicator>("world", "gloo", store, info.rank, info.world_size, timeout,
                                                  comm::gloo_factory(one_host));
}

void run_ranks_as_threads(int world_size, const std::function<void(std::shared_ptr<Communicator>)>& body, const CommOptions& options) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  const std::string backend = backend_of(options);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        base::set_log_rank(rank);
        const auto timeout = timeout_of(options);
        if (world_size > 1 && backend == "shm+gloo") {
          if (options.ranks_per_host < 1 || world_size % options.ranks_per_host != 0) {
            throw Error(ErrorCode::kUsage, "comm",
                        base::str("ranks per host: got ", options.ranks_per_host, " of ", world_size, ", allowed a divisor"));
          }
          body(join_hosts(store, {rank, world_size, options.ranks_per_host}, "gloo", comm::gloo_factory(true), timeout, true));
        } else if (world_size > 1 && backend != "gloo") {
          body(join_shared_memory(store, rank, world_size, timeout, true));
        } else {
          body(std::make_shared<comm::C10dCommunicator>("world", "gloo", store, rank, world_size, timeout, comm::gloo_factory(true)));
        }
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace deepspeed
