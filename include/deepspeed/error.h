// Errors of the library: one exception type with a stable code.
//
// Message form: `[component] E<code> what failed: got X, allowed Y (rank r, parameter p)`.
// Thrown for anything a caller can cause or meet (bad input, a dead peer, a full disk). Bugs of our own are DS_CHECKs and carry
// ErrorCode::kInternal. Thread safety: values are immutable after construction.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace deepspeed {

// Stable numbers, printed as E<number>. The first digit is the area.
enum class ErrorCode : int {
  kInternal = 1000,            // a bug of this library
  kConfigInvalid = 1100,       // ds_config.json is wrong; the message lists every error
  kNotBuilt = 1200,            // a feature that this version does not have, named
  kUsage = 1300,               // an API or command line used in a way its contract forbids
  kCommFailed = 2000,          // a collective failed
  kCommTimeout = 2001,         // a collective met its deadline
  kCommMismatch = 2002,        // ranks called different collectives
  kPeerDied = 2003,            // the connection to a rank is gone
  kCheckpointMissing = 3000,   // no checkpoint where one was asked for
  kCheckpointDamaged = 3001,   // files do not verify
  kCheckpointWrite = 3002,     // a save failed; the previous checkpoint is untouched
  kCheckpointMismatch = 3003,  // checkpoint and model or run disagree
  kShardLayout = 3088,         // ranks laid out their shards differently
  kEnvironment = 4000,         // machine or installation
  kFile = 4001,                // a file operation failed; path and errno are in the message
  kModelFormat = 5000,         // model directory or weights file
  kDataFormat = 5100,          // training data
  kNumerics = 6000,            // non-finite values
};

class Error : public std::runtime_error {
 public:
  // `component` is the part that speaks ("config", "comm"); `message` has the form above without code and component.
  Error(ErrorCode code, std::string_view component, std::string_view message);

  ErrorCode code() const noexcept { return code_; }
  const std::string& component() const noexcept { return component_; }

 private:
  ErrorCode code_;
  std::string component_;
};

// Exit status a tool should end with for this error: 2 usage, 3 configuration, 4 environment, 5 a rank failed, else 1.
int exit_status(const Error& error) noexcept;

}  // namespace deepspeed
