// Ranks agreeing on an outcome before anyone acts on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "deepspeed/comm.h"
#include "deepspeed/error.h"

namespace deepspeed::comm {

struct NormAgreement {
  double square_sum = 0;  // over all ranks, added in rank order
  bool finite = true;     // on every rank
  bool notice = false;    // some rank has one
};

// One small all_gather before each step: sums the squared norm, finds overflow anywhere, and compares the call hashes of `communicators`. Ranks that
// called different collectives get E2002 before anything is updated with wrong data. `notice`: something the caller wants all ranks to turn to after the step.
NormAgreement agree_on_norm(Communicator& communicator, double square_sum, bool finite, bool notice, uint64_t call_hash,
                            const at::Tensor& device_probe);

// values[count]: the sum over ranks, added in rank order; the same bits on all ranks.
void sum_over_ranks(Communicator& communicator, double* values, size_t count, const std::string& tag, const at::Tensor& device_probe);

// Every rank gives its error text ("" for none) and its code. If any rank has one, all throw an Error with the code of the lowest such rank, naming the ranks.
void agree_on_success(Communicator& communicator, const std::string& error, ErrorCode code, const char* component, const std::string& what,
                      const at::Tensor& device_probe);

// The texts of all ranks, in rank order, on every rank.
std::vector<std::string> gather_texts(Communicator& communicator, const std::string& text, const std::string& tag,
                                      const at::Tensor& device_probe);

// The text of rank `root`, on every rank.
std::string broadcast_text(Communicator& communicator, const std::string& text, int root, const std::string& tag,
                           const at::Tensor& device_probe);

}  // namespace deepspeed::comm
