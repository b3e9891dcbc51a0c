// Carries what the ranks print to the launcher's stdout and stderr, and the launcher's own lines between them.
//
// Never blocks the launcher: input is non-blocking, and output is written only where poll says that it fits, so a reader that does not read
// (a stopped pager) cannot keep the launcher from watching its ranks. While a queue is full its ranks are not read, and so wait as they
// would on the reader itself. When the reader is gone, the pipes of its ranks close, and they see that as they would without a launcher.
#pragma once

#include <poll.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "launcher/line_merger.h"

namespace deepspeed::launcher {

class Relay {
 public:
  using Clock = std::chrono::steady_clock;

  Relay();

  // Takes over the read end `fd` of a pipe; `target` is 1 or 2.
  void add(const std::string& prefix, int fd, int target);
  // One line of the launcher's own, to stderr.
  void note(const std::string& line);

  // Appends what to wait for, and the longest wait in milliseconds (-1: any). handle() takes the same entries back, from `first` on.
  int append_poll(std::vector<pollfd>& set);
  void handle(const std::vector<pollfd>& set, size_t first);

  // The ranks are gone: takes what is left in the pipes and closes them.
  void finish_sources();
  // Everything that was taken is written.
  bool is_flushed() const;

 private:
  // One destination. stdout and stderr are one when they are the same file or terminal.
  struct Sink {
    int fd = -1;
    size_t chunk = 0;  // bytes a write may take at once without blocking, after poll said so
    bool broken = false;
    std::string queue;
    LineMerger merger;
  };
  struct Source {
    int fd = -1;
    Sink* sink = nullptr;
    int stream = 0;
    Clock::time_point last_input;
  };

  bool read_once(Source& source);  // false: nothing there now
  void close_source(Source& source);
  void write_once(Sink& sink);

  std::vector<std::unique_ptr<Sink>> sinks_;
  Sink* targets_[2] = {nullptr, nullptr};
  std::vector<Source> sources_;
};

}  // namespace deepspeed::launcher
