#include "optim/flat_lion.h"

#include <ATen/ops/where.h>

#include "kernels/lion.h"
#include "optim/run_memory.h"

namespace deepspeed::optim {
namespace {

std::vector<tensor::Range> gaps_of(const RunLayout& run) {
  std::vector<tensor::Range> gaps;
  int64_t end = 0;
  for (const auto& segment : run.segments) {
    if (segment.size() == 0) continue;
    if (segment.begin > end) gaps.push_back({end, segment.begin});
    end = segment.end;
  }
  if (run.elements > end) gaps.push_back({end, run.elements});
  return gaps;
}

void update_on_accelerator(const RunUpdate& u, at::Tensor moment) {
  const auto& s = u.group;
  const auto gradient = u.gradient.mul(u.grad_scale);
  const auto direction = moment.mul(s.beta1).add_(gradient, 1 - s.beta1);
  moment.mul_(s.beta2).add_(gradient, 1 - s.beta2);
  u.master.mul_(1 - s.lr * s.weight_decay).sub_(at::where(direction.signbit(), -s.lr, s.lr));
  if (u.half_copy.defined()) u.half_copy.copy_(u.master);
}

}  // namespace

FlatLion::FlatLion(const std::vector<RunLayout>& runs, c10::Device device) : states_({"moment"}, runs, device) {
  for (const auto& run : runs) gaps_.push_back(gaps_of(run));
}

void FlatLion::update(const RunUpdate& u) {
  at::Tensor& moment = states_.get(u.run, 0);
  if (u.master.is_cpu()) {
    const kernels::LionStep step{u.group.lr, u.group.beta1, u.group.beta2, u.group.weight_decay, u.grad_scale};
    float* m = memory_of(moment);
    over_run(u, [&](float* p, const float* g, kernels::HalfCopy copy, size_t begin, size_t count) {
      kernels::lion(p, g, m + begin, copy, count, step);
    });
  } else {
    update_on_accelerator(u, moment);
  }
  // The sign of a zero gradient moves what it meets; filling stays zero.
  for (const auto& gap : gaps_[u.run]) {
    u.master.narrow(0, gap.begin, gap.size()).zero_();
    if (u.half_copy.defined()) u.half_copy.narrow(0, gap.begin, gap.size()).zero_();
  }
}

}  // namespace deepspeed::optim
