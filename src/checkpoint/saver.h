// Saves of one engine, at once or beside training.
//
//   save(async)   training thread: snapshot into host buffers -> goes on
//                 background thread: write_checkpoint() over a communicator of its own
//   step()        asks failed(); all ranks agree, then wait() throws on each
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "checkpoint/save.h"
#include "deepspeed/error.h"

namespace deepspeed::checkpoint {

// Not thread safe: one training thread. Collective, all but failed().
class Saver {
 public:
  Saver(std::shared_ptr<Communicator> communicator, at::Tensor device_probe);
  // Waits for a save under way; an error that nobody has seen goes into the log.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Returns DIR/TAG; with `async` before it is there. Waits for an earlier one first, and throws that one's error instead, with nothing saved.
  std::string save(const SaveRequest& request, const Image& image, bool async);
  // A save has ended with an error that wait() has not thrown yet.
  bool failed() const { return failed_; }
  // Returns when no save is under way. Throws the error of the last one, once.
  void wait();

 private:
  void run(const SaveRequest& request, const Snapshot& snapshot);

  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<Communicator> background_;  // made by the first asynchronous save
  at::Tensor probe_;
  HostBuffers buffers_;
  std::thread thread_;
  std::optional<Error> error_;  // of the thread; looked at when it has ended
  std::atomic<bool> failed_ = false;
};

}  // namespace deepspeed::checkpoint
