#include "optim/flat_sgd.h"

#include "kernels/sgd.h"
#include "optim/run_memory.h"

namespace deepspeed::optim {
namespace {

void update_on_accelerator(const RunUpdate& u, at::Tensor buffer, const SgdOptions& options) {
  auto gradient = u.gradient.mul(u.grad_scale).add_(u.master, u.group.weight_decay);
  if (options.momentum != 0) {
    if (u.step <= 1) {
      buffer.copy_(gradient);
    } else {
      buffer.mul_(options.momentum).add_(gradient, 1 - options.dampening);
    }
    gradient = options.nesterov ? gradient.add_(buffer, options.momentum) : buffer;
  }
  u.master.sub_(gradient, u.group.lr);
  if (u.half_copy.defined()) u.half_copy.copy_(u.master);
}

std::vector<std::string> names_of(const SgdOptions& options) {
  if (options.momentum == 0) return {};
  return {"momentum"};
}

}  // namespace

FlatSgd::FlatSgd(const std::vector<RunLayout>& runs, c10::Device device, SgdOptions options)
    : states_(names_of(options), runs, device), options_(options) {}

void FlatSgd::update(const RunUpdate& u) {
  at::Tensor buffer = options_.momentum != 0 ? states_.get(u.run, 0) : at::Tensor();
  if (!u.master.is_cpu()) return update_on_accelerator(u, buffer, options_);
  const kernels::SgdStep step{u.group.lr, options_.momentum, options_.dampening, u.group.weight_decay, options_.nesterov,
                              u.step,     u.grad_scale};
  float* m = buffer.defined() ? memory_of(buffer) : nullptr;
  over_run(u, [&](float* p, const float* g, kernels::HalfCopy copy, size_t begin, size_t count) {
    kernels::sgd(p, g, m ? m + begin : nullptr, copy, count, step);
  });
}

}  // namespace deepspeed::optim
