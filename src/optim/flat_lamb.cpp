#include "optim/flat_lamb.h"

#include "optim/run_memory.h"

namespace deepspeed::optim {
namespace {

// A part of one parameter in one run, small enough to spread over threads. Their sums are added in order, so threads do not change the bits.
struct Piece {
  size_t parameter;
  tensor::Range range;
};

std::vector<Piece> pieces_of(const RunLayout& run) {
  constexpr int64_t kPiece = 32768;
  std::vector<Piece> pieces;
  for (size_t i = 0; i < run.segments.size(); ++i) {
    for (int64_t begin = run.segments[i].begin; begin < run.segments[i].end; begin += kPiece) {
      pieces.push_back({i, {begin, std::min(begin + kPiece, run.segments[i].end)}});
    }
  }
  return pieces;
}

template <typename Call>
void over_pieces(const std::vector<Piece>& pieces, Call&& call) {
  at::parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) call(static_cast<size_t>(i));
  });
}

}  // namespace

FlatLamb::FlatLamb(const std::vector<RunLayout>& runs, c10::Device device, LambOptions options)
    : states_({"moment", "variance"}, runs, device), options_(options), runs_(runs) {
  for (const auto& run : runs) {
    sums_.emplace_back(run.segments.size());
    trust_.emplace_back(run.segments.size(), 1.0);
  }
}

kernels::LambStep FlatLamb::step_of(const RunUpdate& u) const {
  return {u.group.lr,
          u.group.beta1,
          u.group.beta2,
          u.group.eps,
          u.group.weight_decay,
          options_.eps_inside_sqrt,
          options_.bias_correction,
          options_.min_trust,
          options_.max_trust,
          u.step,
          u.grad_scale};
}

at::Tensor FlatLamb::direction(const RunUpdate& u) {
  const at::Tensor& variance = states_.get(u.run, 1);
  const auto denominator = options_.eps_inside_sqrt ? variance.add(u.group.eps).sqrt_() : variance.sqrt().add_(u.group.eps);
  return states_.get(u.run, 0).div(denominator).add_(u.master, u.group.weight_decay);
}

void FlatLamb::prepare_on_accelerator(const RunUpdate& u) {
  const auto gradient = u.gradient.mul(u.grad_scale);
  states_.get(u.run, 0).mul_(u.group.beta1).add_(gradient, 1 - u.group.beta1);
  states_.get(u.run, 1).mul_(u.group.beta2).addcmul_(gradient, gradient, 1 - u.group.beta2);
  const auto wanted = direction(u);
  for (size_t i = 0; i < runs_[u.run].segments.size(); ++i) {
    const auto& segment = runs_[u.run].segments[i];
    const auto squares = [&](const at::Tensor& tensor) {
      return tensor.narrow(0, segment.begin, segment.size()).to(at::kDouble).square().sum().item().toDouble();
    };
    sums_[u.run][i] = {squares(u.master), squares(wanted)};
  }
}

void FlatLamb::prepare(const RunUpdate& u) {
  if (!u.master.is_cpu()) return prepare_on_accelerator(u);
  const auto step = step_of(u);
  const auto* p = u.master.const_data_ptr<float>();
  const auto* g = u.gradient.const_data_ptr<float>();
  float* m = memory_of(states_.get(u.run, 0));
  float* v = memory_of(states_.get(u.run, 1));
  const auto pieces = pieces_of(runs_[u.run]);
  std::vector<kernels::LambSums> parts(pieces.size());
  over_pieces(pieces, [&](size_t i) {
    const auto& range = pieces[i].range;
    parts[i] =
        kernels::lamb_moments(p + range.begin, g + range.begin, m + range.begin, v + range.begin, static_cast<size_t>(range.size()), step);
  });
  auto& sums = sums_[u.run];
  sums.assign(sums.size(), {});
  for (size_t i = 0; i < pieces.size(); ++i) {
    sums[pieces[i].parameter].parameter += parts[i].parameter;
    sums[pieces[i].parameter].update += parts[i].update;
  }
}

void FlatLamb::exchange(const SumOverRanks& sum) {
  std::vector<double> values;
  for (const auto& run : sums_) {
    for (const auto& entry : run) {
      values.push_back(entry.parameter);
      values.push_back(entry.update);
    }
  }
  sum(values.data(), values.size());
  size_t next = 0;
  for (auto& run : sums_) {
    for (auto& entry : run) {
      entry.parameter = values[next++];
      entry.update = values[next++];
    }
  }
}

void FlatLamb::update(const RunUpdate& u) {
  const auto step = step_of(u);
  auto& trust = trust_[u.run];
  for (size_t i = 0; i < trust.size(); ++i) trust[i] = kernels::lamb_trust(sums_[u.run][i], step);
  if (!u.master.is_cpu()) {
    const auto wanted = direction(u);
    for (size_t i = 0; i < trust.size(); ++i) {
      const auto& segment = runs_[u.run].segments[i];
      u.master.narrow(0, segment.begin, segment.size())
          .sub_(wanted.narrow(0, segment.begin, segment.size()), kernels::lamb_step_size(step, trust[i]));
    }
    if (u.half_copy.defined()) u.half_copy.copy_(u.master);
    return;
  }
  auto* p = u.master.mutable_data_ptr<float>();
  const float* m = memory_of(states_.get(u.run, 0));
  const float* v = memory_of(states_.get(u.run, 1));
  const kernels::HalfCopy copy = half_copy_of(u.half_copy);
  const auto pieces = pieces_of(runs_[u.run]);
  over_pieces(pieces, [&](size_t i) {
    const auto begin = static_cast<size_t>(pieces[i].range.begin);
    kernels::lamb_apply(p + begin, m + begin, v + begin, copy.from(begin), static_cast<size_t>(pieces[i].range.size()), step,
                        trust[pieces[i].parameter]);
  });
}

}  // namespace deepspeed::optim
