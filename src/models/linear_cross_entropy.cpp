// Logits exist for one block of tokens at a time, as [vocabulary, tokens]: that way round the products with the weight run at full speed for few
// tokens too. With c the largest logit of a token and e = exp(logit - c), the block becomes the gradient without a pass for the division by the
// sum Z of e: the factor 1 / (Z * scored tokens) goes to the rows of the hidden states' side instead.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "accel/pool.h"
#include "base/text.h"
#include "deepspeed/error.h"
#include "deepspeed/models.h"
#include "models/fused_kernels.h"
#include "models/op_support.h"

namespace deepspeed::models {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kBlockElements = 8 << 20;  // logits held at a time: 32 MB
constexpr int64_t kFewestTokens = 32;        // of a block: fewer would read the weight too often
constexpr int64_t kWidened = 4 << 20;        // elements of a bf16 weight that are widened at a time: 16 MB

// Which tokens count, and their labels.
struct Scored {
  std::vector<int64_t> rows, labels;
};

Scored scored_tokens(const Tensor& labels, int64_t vocabulary, int64_t ignore_index) {
  Scored found;
  const int64_t* label = labels.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < labels.numel(); ++i) {
    if (label[i] == ignore_index) continue;
    if (label[i] < 0 || label[i] >= vocabulary) {
      throw Error(ErrorCode::kDataFormat, "models", base::str("token id: got ", label[i], ", allowed 0 to ", vocabulary - 1));
    }
    found.rows.push_back(i);
    found.labels.push_back(label[i]);
  }
  return found;
}

int64_t part_rows(const Tensor& weight) { return std::max<int64_t>(1, kWidened / std::max<int64_t>(1, weight.size(1))); }

// Calls body(first row, fp32 rows) for the parts of the weight: one for fp32, as many as fit the widened size for bf16.
template <typename Body>
void for_parts(const Tensor& weight, Body&& body) {
  if (weight.scalar_type() == at::kFloat) return body(int64_t{0}, weight);
  const int64_t rows = weight.size(0), step = part_rows(weight);
  for (int64_t begin = 0; begin < rows; begin += step) body(begin, weight.narrow(0, begin, std::min(step, rows - begin)).to(at::kFloat));
}

// The logits of one block, [vocabulary, tokens], and what is known of each of its tokens.
class Block {
 public:
  Block(int64_t vocabulary, int64_t most_tokens)
      : vocabulary_(vocabulary),
        // Sizes that the pool meets again whatever the number of tokens.
        memory_(accel::pooled_empty(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(vocabulary * most_tokens))), at::kFloat,
                                    c10::Device(c10::DeviceType::CPU))) {}

  void fill(const Tensor& wide_x, const Tensor& weight) {
    logits_ = memory_.narrow(0, 0, vocabulary_ * wide_x.size(0)).view({vocabulary_, wide_x.size(0)});
    for_parts(weight, [&](int64_t begin, const Tensor& part) {
      Tensor out = logits_.narrow(0, begin, part.size(0));
      at::mm_out(out, part, wide_x.t());
    });
  }

  // Returns the block's summed loss. Logits become e, with 0 for the labels; own() has what belongs there.
  double to_gradient(const int64_t* labels) {
    const int64_t tokens = logits_.size(1);
    auto* x = logits_.mutable_data_ptr<float>();
    find_tops();
    own_.resize(static_cast<size_t>(tokens));
    for (int64_t t = 0; t < tokens; ++t) own_[static_cast<size_t>(t)] = x[labels[t] * tokens + t];
    exponentiate();
    double loss = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      const auto i = static_cast<size_t>(t);
      loss += static_cast<double>(tops_[i]) + std::log(sums_[i]) - static_cast<double>(own_[i]);
      float& at_label = x[labels[t] * tokens + t];
      own_[i] = static_cast<float>(static_cast<double>(at_label) - sums_[i]);
      at_label = 0;
    }
    return loss;
  }

  void place_labels(const int64_t* labels) {
    const int64_t tokens = logits_.size(1);
    for (int64_t t = 0; t < tokens; ++t) logits_.mutable_data_ptr<float>()[labels[t] * tokens + t] = own_[static_cast<size_t>(t)];
  }

  // The labels' own gradient, [tokens, 1]. It is as large as all others together: added to their sum term by term it would swallow them.
  Tensor own() { return at::from_blob(own_.data(), {logits_.size(1), 1}, logits_.options()); }
  const Tensor& gradient() const { return logits_; }
  const std::vector<double>& sums() const { return sums_; }

 private:
  // Runs of the vocabulary of a size that does not depend on the number of threads, so that neither do the sums.
  int64_t run_rows() const { return grain(logits_.size(1)); }
  int64_t runs() const { return (vocabulary_ + run_rows() - 1) / run_rows(); }

  // kernel(first element, rows, the run's own row of `partial`), for each run.
  template <typename Kernel>
  void over_runs(std::vector<float>* partial, float initial, Kernel&& kernel) {
    const int64_t tokens = logits_.size(1), step = run_rows();
    partial->assign(static_cast<size_t>(runs() * tokens), initial);
    auto* x = logits_.mutable_data_ptr<float>();
    at::parallel_for(0, runs(), 1, [&](int64_t first, int64_t last) {
      for (int64_t run = first; run < last; ++run) {
        const int64_t begin = run * step, rows = std::min(step, vocabulary_ - begin);
        kernel(x + begin * tokens, static_cast<size_t>(rows), partial->data() + run * tokens);
      }
    });
  }

  void find_tops() {
    const auto tokens = static_cast<size_t>(logits_.size(1));
    constexpr float kLowest = -std::numeric_limits<float>::infinity();
    over_runs(&partial_, kLowest, [&](float* x, size_t rows, float* top) { column_tops(top, x, rows, tokens); });
    tops_.assign(tokens, kLowest);
    column_tops(tops_.data(), partial_.data(), static_cast<size_t>(runs()), tokens);
  }

  void exponentiate() {
    const auto tokens = static_cast<size_t>(logits_.size(1));
    over_runs(&partial_, 0.0f, [&](float* x, size_t rows, float* sum) { column_exponentials(x, sum, tops_.data(), rows, tokens); });
    sums_.assign(tokens, 0.0);
    for (size_t i = 0; i < partial_.size(); ++i) sums_[i % tokens] += static_cast<double>(partial_[i]);
  }

  int64_t vocabulary_;
  Tensor memory_, logits_;
  std::vector<float> tops_, own_, partial_;
  std::vector<double> sums_;
};

// Sums gradients over blocks, in fp32.
class Gradients {
 public:
  Gradients(const Tensor& x, const Tensor& weight, int64_t tokens, bool for_x, bool for_weight, bool one_block)
      : weight_(weight), tokens_(tokens) {
    const auto wide = x.options().dtype(at::kFloat);
    if (for_x) x_ = at::empty({tokens, x.size(1)}, wide);
    // One block's result is final and may be rounded at once; the sum of several needs the digits.
    if (for_weight) sum_ = at::empty(weight.sizes(), one_block ? weight.options() : wide);
  }

  // The block of tokens from `begin`, which fill() and to_gradient() have been called for.
  void add(int64_t begin, Block* block, const Tensor& wide_x, int64_t* labels) {
    const int64_t tokens = wide_x.size(0);
    Tensor factors = at::empty({tokens, 1}, wide_x.options());
    std::transform(block->sums().begin(), block->sums().end(), factors.mutable_data_ptr<float>(),
                   [&](double sum) { return static_cast<float>(1.0 / (sum * static_cast<double>(tokens_))); });
    if (x_.defined()) {
      Tensor to = x_.narrow(0, begin, tokens);
      for_parts(weight_, [&](int64_t row, const Tensor& part) {
        const Tensor rows = block->gradient().narrow(0, row, part.size(0));
        row == 0 ? at::mm_out(to, rows.t(), part) : at::addmm_out(to, to, rows.t(), part);
      });
      const Tensor label_rows = weight_.index_select(0, at::from_blob(labels, {tokens}, at::kLong)).to(at::kFloat);
      to.addcmul_(label_rows, block->own()).mul_(factors);
    }
    block->place_labels(labels);
    if (sum_.defined()) add_to_weight(block->gradient(), wide_x * factors, begin == 0);
  }

  const Tensor& x() const { return x_; }
  Tensor weight() const { return sum_.defined() ? sum_.to(weight_.scalar_type()) : Tensor(); }

 private:
  void add_to_weight(const Tensor& gradient, const Tensor& scaled_x, bool first) {
    if (sum_.scalar_type() != at::kFloat) {
      const int64_t rows = sum_.size(0), step = part_rows(sum_);
      for (int64_t begin = 0; begin < rows; begin += step) {
        const int64_t count = std::min(step, rows - begin);
        sum_.narrow(0, begin, count).copy_(at::mm(gradient.narrow(0, begin, count), scaled_x));
      }
    } else if (first) {
      at::mm_out(sum_, gradient, scaled_x);
    } else {
      at::addmm_out(sum_, sum_, gradient, scaled_x);
    }
  }

  const Tensor& weight_;
  int64_t tokens_;
  Tensor x_, sum_;
};

// `compact` holds the rows of the scored tokens; the others get zero.
Tensor spread_rows(const Tensor& compact, const Tensor& rows, const Tensor& like) {
  const Tensor typed = compact.to(like.scalar_type());
  return typed.size(0) == like.size(0) ? typed : at::zeros(like.sizes(), like.options()).index_copy_(0, rows, typed);
}

std::tuple<Tensor, Tensor, Tensor> linear_cross_entropy_cpu(const Tensor& hidden, const Tensor& weight, const Tensor& labels,
                                                            int64_t ignore_index, bool for_x, bool for_weight) {
  const int64_t vocabulary = weight.size(0);
  Scored scored = scored_tokens(labels, vocabulary, ignore_index);
  const auto count = static_cast<int64_t>(scored.rows.size());
  Tensor loss = at::empty({}, hidden.options().dtype(at::kFloat));
  if (count == 0) {
    loss.fill_(std::numeric_limits<float>::quiet_NaN());  // the mean of nothing, as in torch
    return {loss, for_x ? at::zeros(hidden.sizes(), hidden.options()) : Tensor(),
            for_weight ? at::zeros(weight.sizes(), weight.options()) : Tensor()};
  }
  const Tensor rows = at::from_blob(scored.rows.data(), {count}, at::kLong);
  const Tensor x = count == hidden.size(0) ? hidden : hidden.index_select(0, rows);

  const int64_t most = std::max(kFewestTokens, kBlockElements / vocabulary);
  const int64_t blocks = (count + most - 1) / most, tokens = (count + blocks - 1) / blocks;
  Block block(vocabulary, tokens);
  Gradients gradients(x, weight, count, for_x, for_weight, blocks == 1);
  double sum = 0;
  for (int64_t begin = 0; begin < count; begin += tokens) {
    const int64_t size = std::min(tokens, count - begin);
    const Tensor wide_x = x.narrow(0, begin, size).to(at::kFloat);
    block.fill(wide_x, weight);
    sum += block.to_gradient(scored.labels.data() + begin);
    if (for_x || for_weight) gradients.add(begin, &block, wide_x, scored.labels.data() + begin);
  }
  loss.fill_(sum / static_cast<double>(count));
  return {loss, for_x ? spread_rows(gradients.x(), rows, hidden) : Tensor(), gradients.weight()};
}

auto loss_operator() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("ds_models::linear_cross_entropy", "")
                             .typed<std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, int64_t, bool, bool)>();
  return op;
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static Tensor forward(AutogradContext* context, const Tensor& hidden, const Tensor& weight, const Tensor& labels, int64_t ignore_index,
                        bool for_x, bool for_weight) {
    at::AutoDispatchBelowADInplaceOrView below;
    auto [loss, grad_x, grad_weight] = loss_operator().call(hidden, weight, labels, ignore_index, for_x, for_weight);
    if (for_x) context->saved_data["x"] = std::move(grad_x);
    if (for_weight) context->saved_data["weight"] = std::move(grad_weight);
    return loss;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    if (context->saved_data.empty()) {
      throw Error(ErrorCode::kUsage, "models", "backward through the loss: got a second call, allowed one (its gradients are handed over)");
    }
    at::AutoDispatchBelowADInplaceOrView below;
    const auto factor = grads[0].item<float>();
    const auto take = [&](const char* name) {
      const auto found = context->saved_data.find(name);
      if (found == context->saved_data.end()) return Tensor();
      Tensor gradient = found->second.toTensor();
      if (factor != 1.0f) gradient.mul_(factor);
      return gradient;
    };
    variable_list result = {take("x"), take("weight"), Tensor(), Tensor(), Tensor(), Tensor()};
    context->saved_data.clear();
    return result;
  }
};

std::tuple<Tensor, Tensor, Tensor> linear_cross_entropy_autograd(const Tensor& hidden, const Tensor& weight, const Tensor& labels,
                                                                 int64_t ignore_index, bool for_x, bool for_weight) {
  return {LinearCrossEntropy::apply(hidden, weight, labels, ignore_index, for_x, for_weight), Tensor(), Tensor()};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(ds_models, library) {
  // One operator sees hidden states and weight, so that engines find the weight in place; backward needs neither.
  library.def(
      "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor labels, int ignore_index, bool for_x, bool for_weight) -> (Tensor, "
      "Tensor, "
      "Tensor)");
}

TORCH_LIBRARY_IMPL(ds_models, CPU, library) { library.impl("linear_cross_entropy", linear_cross_entropy_cpu); }

TORCH_LIBRARY_IMPL(ds_models, AutogradCPU, library) { library.impl("linear_cross_entropy", linear_cross_entropy_autograd); }

}  // namespace deepspeed::models

namespace deepspeed {

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels, int64_t ignore_index) {
  const int64_t width = hidden.dim() > 0 ? hidden.size(-1) : 0;
  if (hidden.dim() < 2 || weight.dim() != 2 || weight.size(1) != width || weight.size(0) < 1 || weight.dtype() != hidden.dtype() ||
      labels.scalar_type() != at::kLong || labels.sizes() != hidden.sizes().slice(0, static_cast<size_t>(hidden.dim() - 1))) {
    throw Error(ErrorCode::kUsage, "models",
                base::str("linear_cross_entropy: got hidden ", hidden.toString(), " ", hidden.sizes(), ", weight ", weight.toString(), " ",
                          weight.sizes(), ", labels ", labels.toString(), " ", labels.sizes(),
                          ", allowed hidden [..., n], weight [vocabulary, n] of the same type, labels int64 [...]"));
  }
  const at::Tensor rows = hidden.reshape({-1, width}), flat_labels = labels.reshape({-1}).contiguous();
  if (!models::fusable(hidden)) return at::cross_entropy_loss(models::widened(at::linear(rows, weight)), flat_labels, {}, 1, ignore_index);
  const bool trains = at::GradMode::is_enabled();
  return std::get<0>(models::loss_operator().call(rows, weight, flat_labels, ignore_index, trains && rows.requires_grad(),
                                                  trains && weight.requires_grad()));
}

}  // namespace deepspeed
