#include "optim/flat_muon.h"

#include <ATen/ops/lerp.h>

#include <algorithm>
#include <cctype>

#include "kernels/adam.h"
#include "kernels/sgd.h"
#include "optim/orthogonal.h"
#include "optim/run_memory.h"

namespace deepspeed::optim {
namespace {

std::vector<size_t> state_counts(const std::vector<RunLayout>& runs) {
  std::vector<size_t> counts;
  for (const auto& run : runs) counts.push_back(run.matrices ? 1 : 2);
  return counts;
}

}  // namespace

FlatMuon::FlatMuon(const std::vector<RunLayout>& runs, c10::Device device, double momentum)
    : states_({"moment", "variance"}, runs, device, state_counts(runs)), momentum_(momentum), runs_(runs) {}

void FlatMuon::direct(const RunUpdate& u, const GatherRun& gather) {
  const RunLayout& run = runs_[u.run];
  DS_CHECK(run.matrices, "run ", u.run);
  at::Tensor moment = states_.get(u.run, 0), mixed = u.gradient;
  if (u.grad_scale != 1.0) mixed.mul_(u.grad_scale);
  moment.lerp_(mixed, 1 - momentum_);
  mixed.lerp_(moment, momentum_);
  const at::Tensor whole = gather(mixed);
  for (size_t i = 0; i < run.slots.size(); ++i) {
    const auto& segment = run.segments[i];
    const auto& slot = run.slots[i];
    if (segment.size() == 0) continue;
    const at::Tensor direction = orthogonalised(whole.narrow(0, slot.offset, slot.elements).view(slot.shape)).flatten();
    mixed.narrow(0, segment.begin, segment.size()).copy_(direction.narrow(0, run.begin + segment.begin - slot.offset, segment.size()));
  }
}

void FlatMuon::update(const RunUpdate& u) {
  const bool matrices = runs_[u.run].matrices;
  if (!u.master.is_cpu()) {
    if (matrices) {
      u.master.sub_(u.gradient.mul(u.grad_scale).add_(u.master, u.group.weight_decay), u.group.lr);
      if (u.half_copy.defined()) u.half_copy.copy_(u.master);
    } else {
      update_adam_on_accelerator(u, states_.get(u.run, 0), states_.get(u.run, 1), {}, AdamOptions{});
    }
    return;
  }
  if (matrices) {
    const kernels::SgdStep step{.lr = u.group.lr, .weight_decay = u.group.weight_decay, .step = u.step, .grad_scale = u.grad_scale};
    over_run(
        u, [&](float* p, const float* g, kernels::HalfCopy copy, size_t, size_t count) { kernels::sgd(p, g, nullptr, copy, count, step); });
    return;
  }
  const kernels::AdamStep step{
      u.group.lr, u.group.beta1, u.group.beta2, u.group.eps, u.group.weight_decay, /*decoupled=*/true, /*bias_correction=*/true,
      u.step,     u.grad_scale};
  float* m = memory_of(states_.get(u.run, 0));
  float* v = memory_of(states_.get(u.run, 1));
  over_run(u, [&](float* p, const float* g, kernels::HalfCopy copy, size_t begin, size_t count) {
    kernels::adam(p, g, m + begin, v + begin, copy, count, step);
  });
}

bool takes_matrix_rule(const std::string& name, const std::vector<int64_t>& shape) {
  std::string lower = name;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return shape.size() >= 2 && lower.find("embed") == std::string::npos && lower.find("lm_head") == std::string::npos;
}

}  // namespace deepspeed::optim
