// The store that ranks of a test meet in, when they are threads of it.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "shm/domain.h"

namespace deepspeed::shm {

class Meeting {
 public:
  // What `spoil` returns for a key takes the place of the true value.
  Domain::Store store(std::function<std::string(const std::string& key, const std::string& value)> spoil = {}) {
    return {[this](const std::string& key, const std::string& value) {
              std::lock_guard lock(mutex_);
              values_[key] = value;
              changed_.notify_all();
            },
            [this, spoil](const std::string& key) {
              std::unique_lock lock(mutex_);
              changed_.wait(lock, [&] { return values_.count(key) > 0; });
              return spoil ? spoil(key, values_[key]) : values_[key];
            }};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace deepspeed::shm
