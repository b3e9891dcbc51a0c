// Joining a job: the store that ranks meet in, and the world group.
#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

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
#include "comm/nccl_backend.h"
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
comm::ShmDomain::Store text_store(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout) {
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
  if (backend != "auto" && backend != "gloo" && backend != "nccl" && backend != "shm") {
    throw Error(ErrorCode::kUsage, "comm", base::str("backend: got \"", backend, "\", allowed auto, shm, gloo, nccl"));
  }
  return backend;
}

// Shared memory where all ranks live on this host. In "auto", ranks that may not read each other's memory get nullptr and use Gloo.
std::shared_ptr<Communicator> join_shared_memory(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                 std::chrono::milliseconds timeout, bool required) {
  try {
    auto domain = std::make_shared<comm::ShmDomain>(text_store(store, rank, size, timeout), "shm", rank, size, timeout);
    return std::make_shared<comm::ShmCommunicator>("world", std::move(domain), timeout);
  } catch (const Error& error) {
    if (required || error.code() != ErrorCode::kEnvironment) throw;
    if (rank == 0) base::log_warning(error.what(), "; ranks talk through Gloo instead, which is slower");
    return nullptr;
  }
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
  if (backend == "auto") backend = !accel::choose_device("auto", info.local_rank).is_cpu() ? "nccl" : one_host ? "shm or gloo" : "gloo";
  if (backend == "shm" && !one_host) {
    throw Error(
        ErrorCode::kUsage, "comm",
        base::str("backend shm: got ", info.local_world_size, " of ", info.world_size, " ranks on this host, allowed all on one host"));
  }
  if (info.world_size == 1) {
    return std::make_shared<comm::C10dCommunicator>("world", "none", nullptr, 0, 1, timeout, comm::BackendFactory{});
  }
  const auto store = join_store(info, timeout);
  if (backend == "shm" || backend == "shm or gloo") {
    auto communicator = join_shared_memory(store, info.rank, info.world_size, timeout, backend == "shm");
    if (communicator) return communicator;
  }
  const bool nccl = backend == "nccl";
  return std::make_shared<comm::C10dCommunicator>("world", nccl ? "nccl" : "gloo", store, info.rank, info.world_size, timeout,
                                                  nccl ? comm::nccl_factory() : comm::gloo_factory(one_host));
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
        if (world_size > 1 && backend != "gloo") {
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
