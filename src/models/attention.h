// Causal attention, block by block, without a matrix of all scores.
//
// Source: Dao et al., "FlashAttention" (arXiv:2205.14135): the forward keeps, per query, the logarithm of its softmax's denominator; the backward
// computes the scores again from it. Here a block of queries meets all its keys at once: on a CPU the scores of one block fit into the cache.
#pragma once

#include <ATen/core/Tensor.h>

namespace deepspeed::models {

// q [batch, seq, heads, dim]; k, v [batch, seq, kv_heads, dim], kv_heads divides heads; one dtype. Result [batch, seq, heads, dim], contiguous.
// Query i attends to keys 0 ... i; scores are multiplied by scale > 0. fp32 or bf16 on the CPU, computed in fp32 inside.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale);
// Whether that is the faster way: torch's own kernel is slower for long texts, and tens of times slower for bf16 where the CPU lacks such
// instructions.
bool causal_attention_pays(const at::Tensor& q);

}  // namespace deepspeed::models
