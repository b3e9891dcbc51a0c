#include "comm/agreement.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::comm {
namespace {

// Gathers `count` integers of every rank; returns size * count of them in rank order.
std::vector<int64_t> gather(Communicator& communicator, const std::vector<int64_t>& mine, const std::string& tag,
                            const at::Tensor& device_probe) {
  const auto count = static_cast<int64_t>(mine.size());
  auto input = at::empty({count}, at::TensorOptions().dtype(at::kLong));
  std::copy(mine.begin(), mine.end(), input.mutable_data_ptr<int64_t>());
  auto output = at::empty({count * communicator.size()}, device_probe.options().dtype(at::kLong));
  communicator.all_gather(output, device_probe.is_cpu() ? input : input.to(device_probe.device()), tag)->wait();
  const auto host = device_probe.is_cpu() ? output : output.cpu();
  const auto* values = host.const_data_ptr<int64_t>();
  return {values, values + host.numel()};
}

}  // namespace

NormAgreement agree_on_norm(Communicator& communicator, double square_sum, bool finite, bool notice, uint64_t call_hash,
                            const at::Tensor& device_probe) {
  const auto all =
      gather(communicator, {std::bit_cast<int64_t>(square_sum), (finite ? 1 : 0) + (notice ? 2 : 0), std::bit_cast<int64_t>(call_hash)},
             "gradient norm", device_probe);
  NormAgreement result;
  std::vector<std::string> different;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const int64_t* entry = all.data() + static_cast<ptrdiff_t>(rank) * 3;
    result.square_sum += std::bit_cast<double>(entry[0]);
    result.finite = result.finite && (entry[1] & 1) != 0;
    result.notice = result.notice || (entry[1] & 2) != 0;
    if (entry[2] != std::bit_cast<int64_t>(call_hash)) different.push_back(std::to_string(rank));
  }
  if (!different.empty()) {
    throw Error(
        ErrorCode::kCommMismatch, "engine",
        base::str("step: got other collectives on rank ", base::join(different, ", "), " than on rank ", communicator.rank(),
                  " since the start, allowed the same on all; nothing was updated. Do all ranks run the same model and the same number "
                  "of micro batches?"));
  }
  return result;
}

void sum_over_ranks(Communicator& communicator, double* values, size_t count, const std::string& tag, const at::Tensor& device_probe) {
  if (communicator.size() == 1 || count == 0) return;
  std::vector<int64_t> mine(count);
  for (size_t i = 0; i < count; ++i) mine[i] = std::bit_cast<int64_t>(values[i]);
  const auto all = gather(communicator, mine, tag, device_probe);
  std::fill_n(values, count, 0.0);
  for (size_t i = 0; i < all.size(); ++i) values[i % count] += std::bit_cast<double>(all[i]);
}

void agree_on_success(Communicator& communicator, const std::string& error, ErrorCode code, const char* component, const std::string& what,
                      const at::Tensor& device_probe) {
  constexpr size_t kText = 1024;
  std::vector<int64_t> mine(1 + kText / sizeof(int64_t), 0);
  mine[0] = static_cast<int64_t>(code);
  std::memcpy(mine.data() + 1, error.data(), std::min(error.size(), kText - 1));
  const auto all = gather(communicator, mine, what, device_probe);
  std::vector<std::string> errors;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const int64_t* entry = all.data() + static_cast<ptrdiff_t>(rank) * static_cast<ptrdiff_t>(mine.size());
    const char* text = reinterpret_cast<const char*>(entry + 1);
    if (*text == '\0') continue;
    if (errors.empty()) code = static_cast<ErrorCode>(entry[0]);
    errors.push_back(base::str(text, " (rank ", rank, ")"));
  }
  if (!errors.empty()) throw Error(code, component, base::str(what, ": ", base::join(errors, "; ")));
}

std::vector<std::string> gather_texts(Communicator& communicator, const std::string& text, const std::string& tag,
                                      const at::Tensor& device_probe) {
  const auto sizes = gather(communicator, {static_cast<int64_t>(text.size())}, tag, device_probe);
  const int64_t words = (*std::max_element(sizes.begin(), sizes.end()) + 7) / 8;
  std::vector<int64_t> mine(static_cast<size_t>(words), 0);
  std::memcpy(mine.data(), text.data(), text.size());
  std::vector<std::string> texts(sizes.size());
  if (words == 0) return texts;
  const auto all = gather(communicator, mine, tag, device_probe);
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    texts[rank].assign(reinterpret_cast<const char*>(all.data() + static_cast<ptrdiff_t>(rank) * words), static_cast<size_t>(sizes[rank]));
  }
  return texts;
}

std::string broadcast_text(Communicator& communicator, const std::string& text, int root, const std::string& tag,
                           const at::Tensor& device_probe) {
  auto size = at::zeros({1}, device_probe.options().dtype(at::kLong));
  if (communicator.rank() == root) size.fill_(static_cast<int64_t>(text.size()));
  communicator.broadcast(size, root, tag)->wait();
  auto bytes = at::empty({size.item().toLong()}, at::TensorOptions().dtype(at::kByte));
  if (communicator.rank() == root) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  auto carried = device_probe.is_cpu() ? bytes : bytes.to(device_probe.device());
  if (carried.numel() > 0) communicator.broadcast(carried, root, tag)->wait();
  const auto host = carried.cpu();
  return std::string(static_cast<const char*>(host.const_data_ptr()), static_cast<size_t>(host.numel()));
}

}  // namespace deepspeed::comm
