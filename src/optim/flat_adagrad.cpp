#include "optim/flat_adagrad.h"

#include "kernels/adagrad.h"
#include "optim/run_memory.h"

namespace deepspeed::optim {
namespace {

void update_on_accelerator(const RunUpdate& u, at::Tensor sum, double lr_decay) {
  const auto& s = u.group;
  const auto gradient = u.gradient.mul(u.grad_scale).add_(u.master, s.weight_decay);
  sum.addcmul_(gradient, gradient);
  u.master.addcdiv_(gradient, sum.sqrt().add_(s.eps), -s.lr / (1 + static_cast<double>(u.step - 1) * lr_decay));
  if (u.half_copy.defined()) u.half_copy.copy_(u.master);
}

}  // namespace

FlatAdagrad::FlatAdagrad(const std::vector<RunLayout>& runs, c10::Device device, AdagradOptions options)
    : states_({"square_sum"}, runs, device), options_(options) {
  for (size_t run = 0; run < runs.size(); ++run) states_.get(run, 0).fill_(options.initial_accumulator_value);
}

void FlatAdagrad::update(const RunUpdate& u) {
  at::Tensor& sum = states_.get(u.run, 0);
  if (!u.master.is_cpu()) return update_on_accelerator(u, sum, options_.lr_decay);
  const kernels::AdagradStep step{.lr = u.group.lr,
                                  .lr_decay = options_.lr_decay,
                                  .eps = u.group.eps,
                                  .weight_decay = u.group.weight_decay,
                                  .step = u.step,
                                  .grad_scale = u.grad_scale};
  float* s = memory_of(sum);
  over_run(u, [&](float* p, const float* g, kernels::HalfCopy copy, size_t begin, size_t count) {
    kernels::adagrad(p, g, s + begin, copy, count, step);
  });
}

}  // namespace deepspeed::optim
