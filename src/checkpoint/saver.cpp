#include "checkpoint/saver.h"

#include <utility>

#include "base/log.h"
#include "base/text.h"

namespace deepspeed::checkpoint {

Saver::Saver(std::shared_ptr<Communicator> communicator, at::Tensor device_probe)
    : communicator_(std::move(communicator)), probe_(std::move(device_probe)) {}

Saver::~Saver() {
  try {
    wait();
  } catch (const Error& error) {
    base::log_warning(error.what());
  }
}

std::string Saver::save(const SaveRequest& request, const Image& image, bool async) {
  wait();
  check_request(request, image.client_json);
  if (!async) {
    const Snapshot snapshot = take_snapshot(image, communicator_->rank(), communicator_->size(), probe_, nullptr);
    return write_checkpoint(*communicator_, store::disk(), request, snapshot, probe_);
  }
  if (!background_) background_ = communicator_->duplicate("checkpoint");
  auto snapshot = take_snapshot(image, communicator_->rank(), communicator_->size(), probe_, &buffers_);
  thread_ = std::thread([this, request, snapshot = std::move(snapshot)] { run(request, snapshot); });
  return request.directory + "/" + request.tag;
}

void Saver::run(const SaveRequest& request, const Snapshot& snapshot) {
  try {
    write_checkpoint(*background_, store::disk(), request, snapshot, probe_);
  } catch (const Error& error) {
    error_ = error;
  } catch (const std::exception& error) {
    error_ = Error(ErrorCode::kInternal, "checkpoint", error.what());
  }
  failed_ = error_.has_value();
}

void Saver::wait() {
  if (thread_.joinable()) thread_.join();
  if (!error_) return;
  failed_ = false;
  const Error error = *std::exchange(error_, std::nullopt);
  throw Error(error.code(), "checkpoint", base::str("the save in the background failed: ", error.what()));
}

}  // namespace deepspeed::checkpoint
