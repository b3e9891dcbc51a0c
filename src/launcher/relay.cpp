#include "launcher/relay.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace deepspeed::launcher {
namespace {

constexpr size_t kFullQueue = 1 << 20;
constexpr std::chrono::milliseconds kShowUnfinishedAfter{150};

bool same_file(int a, int b) {
  struct stat first {};
  struct stat second {};
  return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev && first.st_ino == second.st_ino &&
         first.st_rdev == second.st_rdev;
}

bool is_regular(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

}  // namespace

Relay::Relay() {
  for (int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    if (fd == STDERR_FILENO && same_file(STDOUT_FILENO, STDERR_FILENO)) {
      targets_[1] = targets_[0];
      continue;
    }
    auto sink = std::make_unique<Sink>();
    sink->fd = fd;
    sink->chunk = is_regular(fd) ? size_t{1} << 18 : size_t{PIPE_BUF};
    targets_[fd - 1] = sink.get();
    sinks_.push_back(std::move(sink));
  }
}

void Relay::add(const std::string& prefix, int fd, int target) {
  Sink* sink = targets_[target - 1];
  sources_.push_back({fd, sink, sink->merger.add_stream(prefix), Clock::now()});
}

void Relay::note(const std::string& line) {
  Sink& sink = *targets_[1];
  if (!sink.broken) sink.merger.insert_line(line, sink.queue);
}

int Relay::append_poll(std::vector<pollfd>& set) {
  int wait_ms = -1;
  for (const auto& sink : sinks_) set.push_back({sink->queue.empty() || sink->broken ? -1 : sink->fd, POLLOUT, 0});
  for (const Source& source : sources_) {
    set.push_back({source.sink->queue.size() >= kFullQueue ? -1 : source.fd, POLLIN, 0});
    if (source.fd >= 0 && source.sink->merger.has_unfinished(source.stream)) wait_ms = static_cast<int>(kShowUnfinishedAfter.count());
  }
  return wait_ms;
}

void Relay::handle(const std::vector<pollfd>& set, size_t first) {
  const auto now = Clock::now();
  for (size_t i = 0; i < sources_.size(); ++i) {
    Source& source = sources_[i];
    if (source.fd < 0) continue;
    if (set[first + sinks_.size() + i].revents) {
      read_once(source);
    } else if (now - source.last_input >= kShowUnfinishedAfter) {
      source.sink->merger.show_unfinished(source.stream, source.sink->queue);
    }
  }
  for (size_t i = 0; i < sinks_.size(); ++i) {
    if (set[first + i].revents) write_once(*sinks_[i]);
  }
}

bool Relay::read_once(Source& source) {
  std::array<char, 1 << 16> bytes;
  const ssize_t size = read(source.fd, bytes.data(), bytes.size());
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (size <= 0) {
    close_source(source);
    return false;
  }
  source.last_input = Clock::now();
  source.sink->merger.feed(source.stream, {bytes.data(), static_cast<size_t>(size)}, source.sink->queue);
  return true;
}

void Relay::close_source(Source& source) {
  if (!source.sink->broken) source.sink->merger.close_stream(source.stream, source.sink->queue);
  close(source.fd);
  source.fd = -1;
}

void Relay::write_once(Sink& sink) {
  const ssize_t size = write(sink.fd, sink.queue.data(), std::min(sink.queue.size(), sink.chunk));
  if (size >= 0) {
    sink.queue.erase(0, static_cast<size_t>(size));
    return;
  }
  if (errno == EAGAIN || errno == EINTR) return;
  // The reader is gone or the disk is full: nothing can be shown there any more, and the ranks find out by their own writes.
  sink.broken = true;
  sink.queue.clear();
  for (Source& source : sources_) {
    if (source.fd >= 0 && source.sink == &sink) close_source(source);
  }
}

void Relay::finish_sources() {
  for (Source& source : sources_) {
    if (source.fd < 0) continue;
    while (read_once(source)) {
    }
    if (source.fd >= 0) close_source(source);
  }
}

bool Relay::is_flushed() const {
  return std::all_of(sinks_.begin(), sinks_.end(), [](const auto& sink) { return sink->broken || sink->queue.empty(); });
}

}  // namespace deepspeed::launcher
