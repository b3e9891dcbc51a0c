#include "models/attention.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cmath>

#include "models/op_support.h"

namespace deepspeed::models {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kQueries = 64;      // of a block
constexpr int64_t kWorthwhile = 128;  // tokens; below this torch's own kernel is as fast in fp32

// A [rows, columns] view of plain memory.
Tensor matrix(float* data, int64_t rows, int64_t columns) {
  return at::from_blob(data, {rows, columns}, at::TensorOptions().dtype(at::kFloat));
}

// One head of a [batch, seq, heads, dim] tensor as [seq, dim] floats, and back.
struct Head {
  int64_t batch, head;
};

void load(float* out, const Tensor& tensor, Head which) {
  with_elements(tensor.scalar_type(), [&](auto* type) {
    const auto* from = data(tensor, type) + which.batch * tensor.stride(0) + which.head * tensor.stride(2);
    const int64_t dim = tensor.size(3);
    for (int64_t i = 0; i < tensor.size(1); ++i) to_floats(out + i * dim, from + i * tensor.stride(1), static_cast<size_t>(dim));
  });
}

void store(const Tensor& tensor, Head which, const float* values) {
  with_elements(tensor.scalar_type(), [&](auto* type) {
    auto* to = data(tensor, type) + which.batch * tensor.stride(0) + which.head * tensor.stride(2);
    const int64_t dim = tensor.size(3);
    for (int64_t i = 0; i < tensor.size(1); ++i) from_floats(to + i * tensor.stride(1), values + i * dim, static_cast<size_t>(dim));
  });
}

// Rows must be runs of memory.
Tensor with_plain_rows(const Tensor& x) { return x.stride(3) == 1 ? x : x.contiguous(); }

// Scratch of one thread: `count` matrices of seq * dim floats and `blocks` of kQueries * seq.
class Scratch {
 public:
  Scratch(int64_t count, int64_t blocks, int64_t seq, int64_t dim)
      : matrix_(seq * dim), block_(kQueries * seq), values_(static_cast<size_t>(count * matrix_ + blocks * block_)), count_(count) {}
  float* full(int64_t i) { return values_.data() + i * matrix_; }
  float* block(int64_t i) { return values_.data() + count_ * matrix_ + i * block_; }

 private:
  int64_t matrix_, block_;
  std::vector<float> values_;
  int64_t count_;
};

// out[seq, dim] and log_sum[seq] of one head.
void forward_head(float* out, float* log_sum, float* q, float* k, float* v, float* scores, int64_t seq, int64_t dim, float scale) {
  for (int64_t begin = 0; begin < seq; begin += kQueries) {
    const int64_t end = std::min(seq, begin + kQueries);
    // Keys 0 ... end - 1; those after the query itself are cut off row by row.
    Tensor block = matrix(scores, end - begin, end);
    at::mm_out(block, matrix(q + begin * dim, end - begin, dim), matrix(k, end, dim).t());
    float sums[kQueries];
    for (int64_t i = begin; i < end; ++i) {
      float* row = scores + (i - begin) * end;
      float top = 0;
      sums[i - begin] = softmax_numerators(row, static_cast<size_t>(i + 1), scale, &top);
      std::fill(row + i + 1, row + end, 0.0f);
      log_sum[i] = top + std::log(sums[i - begin]);
    }
    Tensor result = matrix(out + begin * dim, end - begin, dim);
    at::mm_out(result, block, matrix(v, end, dim));
    for (int64_t i = begin; i < end; ++i) multiply(out + i * dim, out + i * dim, 1.0f / sums[i - begin], static_cast<size_t>(dim));
  }
}

struct HeadGradients {
  float *q, *k, *v;  // q is written, k and v are added to
};

void backward_head(HeadGradients to, float* grad, const float* out, const float* log_sum, float* q, float* k, float* v,
                   float* probabilities, float* slopes, int64_t seq, int64_t dim, float scale) {
  for (int64_t begin = 0; begin < seq; begin += kQueries) {
    const int64_t end = std::min(seq, begin + kQueries), rows = end - begin;
    Tensor p = matrix(probabilities, rows, end), s = matrix(slopes, rows, end);
    const Tensor q_block = matrix(q + begin * dim, rows, dim), grad_block = matrix(grad + begin * dim, rows, dim);
    at::mm_out(p, q_block, matrix(k, end, dim).t());
    at::mm_out(s, grad_block, matrix(v, end, dim).t());
    for (int64_t i = begin; i < end; ++i) {
      float *p_row = probabilities + (i - begin) * end, *s_row = slopes + (i - begin) * end;
      const auto count = static_cast<size_t>(i + 1);
      softmax_with(p_row, count, scale, log_sum[i]);
      softmax_gradient(s_row, p_row, count, dot(grad + i * dim, out + i * dim, static_cast<size_t>(dim)), scale);
      std::fill(p_row + count, p_row + end, 0.0f);
      std::fill(s_row + count, s_row + end, 0.0f);
    }
    Tensor to_v = matrix(to.v, end, dim), to_k = matrix(to.k, end, dim), to_q = matrix(to.q + begin * dim, rows, dim);
    at::addmm_out(to_v, to_v, p.t(), grad_block);
    at::addmm_out(to_k, to_k, s.t(), q_block);
    at::mm_out(to_q, s, matrix(k, end, dim));
  }
}

std::tuple<Tensor, Tensor> attention_cpu(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, double scale) {
  const Tensor q = with_plain_rows(q_in), k = with_plain_rows(k_in), v = with_plain_rows(v_in);
  const int64_t batch = q.size(0), seq = q.size(1), heads = q.size(2), dim = q.size(3), group = heads / k.size(2);
  Tensor out = at::empty(q.sizes(), q.options());
  Tensor log_sum = at::empty({batch, heads, seq}, q.options().dtype(at::kFloat));
  at::parallel_for(0, batch * heads, 1, [&](int64_t first, int64_t last) {
    const at::AutoDispatchBelowADInplaceOrView below;
    Scratch scratch(4, 1, seq, dim);
    for (int64_t i = first; i < last; ++i) {
      const Head head = {i / heads, i % heads}, kv_head = {head.batch, head.head / group};
      load(scratch.full(0), q, head);
      if (i == first || head.head % group == 0) {
        load(scratch.full(1), k, kv_head);
        load(scratch.full(2), v, kv_head);
      }
      forward_head(scratch.full(3), log_sum.mutable_data_ptr<float>() + i * seq, scratch.full(0), scratch.full(1), scratch.full(2),
                   scratch.block(0), seq, dim, static_cast<float>(scale));
      store(out, head, scratch.full(3));
    }
  });
  return {out, log_sum};
}

std::tuple<Tensor, Tensor, Tensor> attention_backward_cpu(const Tensor& grad_in, const Tensor& q_in, const Tensor& k_in, const Tensor& v_in,
                                                          const Tensor& out, const Tensor& log_sum, double scale) {
  const Tensor q = with_plain_rows(q_in), k = with_plain_rows(k_in), v = with_plain_rows(v_in), grad = with_plain_rows(grad_in);
  const int64_t batch = q.size(0), seq = q.size(1), heads = q.size(2), dim = q.size(3), kv_heads = k.size(2), group = heads / kv_heads;
  Tensor grad_q = at::empty(q.sizes(), q.options()), grad_k = at::empty(k.sizes(), k.options()), grad_v = at::empty(v.sizes(), v.options());
  // The heads that share keys are done by one thread, as their gradients add up.
  at::parallel_for(0, batch * kv_heads, 1, [&](int64_t first, int64_t last) {
    const at::AutoDispatchBelowADInplaceOrView below;
    Scratch scratch(8, 2, seq, dim);
    for (int64_t i = first; i < last; ++i) {
      const Head kv_head = {i / kv_heads, i % kv_heads};
      load(scratch.full(1), k, kv_head);
      load(scratch.full(2), v, kv_head);
      std::fill(scratch.full(6), scratch.full(8), 0.0f);
      for (int64_t g = 0; g < group; ++g) {
        const Head head = {kv_head.batch, kv_head.head * group + g};
        load(scratch.full(0), q, head);
        load(scratch.full(3), grad, head);
        load(scratch.full(4), out, head);
        backward_head({scratch.full(5), scratch.full(6), scratch.full(7)}, scratch.full(3), scratch.full(4),
                      log_sum.const_data_ptr<float>() + (head.batch * heads + head.head) * seq, scratch.full(0), scratch.full(1),
                      scratch.full(2), scratch.block(0), scratch.block(1), seq, dim, static_cast<float>(scale));
        store(grad_q, head, scratch.full(5));
      }
      store(grad_k, kv_head, scratch.full(6));
      store(grad_v, kv_head, scratch.full(7));
    }
  });
  return {grad_q, grad_k, grad_v};
}

auto attention_operator() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("ds_models::attention", "")
                             .typed<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, double)>();
  return op;
}

auto attention_backward_operator() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("ds_models::attention_backward", "")
                             .typed<std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                                                       const Tensor&, const Tensor&, double)>();
  return op;
}

struct Attention : torch::autograd::Function<Attention> {
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
    at::AutoDispatchBelowADInplaceOrView below;
    auto [out, log_sum] = attention_operator().call(q, k, v, scale);
    context->save_for_backward({q, k, v, out, log_sum});
    context->saved_data["scale"] = scale;
    context->mark_non_differentiable({log_sum});
    return {out, log_sum};
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    auto [grad_q, grad_k, grad_v] = attention_backward_operator().call(grads[0], saved[0], saved[1], saved[2], saved[3], saved[4],
                                                                       context->saved_data["scale"].toDouble());
    return {grad_q, grad_k, grad_v, Tensor()};
  }
};

std::tuple<Tensor, Tensor> attention_autograd(const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
  const variable_list out = Attention::apply(q, k, v, scale);
  return {out[0], out[1]};
}

}  // namespace

// An operator of the dispatcher for one reason: what watches operators sees one, not the hundreds of products inside.
TORCH_LIBRARY_FRAGMENT(ds_models, library) {
  library.def("attention(Tensor q, Tensor k, Tensor v, float scale) -> (Tensor, Tensor)");
  library.def(
      "attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor log_sum, float scale) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(ds_models, CPU, library) {
  library.impl("attention", attention_cpu);
  library.impl("attention_backward", attention_backward_cpu);
}

TORCH_LIBRARY_IMPL(ds_models, AutogradCPU, library) { library.impl("attention", attention_autograd); }

bool causal_attention_pays(const Tensor& q) { return fusable(q) && (q.scalar_type() == at::kBFloat16 || q.size(1) >= kWorthwhile); }

Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
  return std::get<0>(attention_operator().call(q, k, v, scale));
}

}  // namespace deepspeed::models
