// The nearest orthogonal matrix, roughly: what Muon makes of a momentum.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace deepspeed::optim {

// Source: Jordan and others, "Muon: an optimizer for hidden layers in neural networks" (2024). Five steps of
//   X = a X + (b A + c A A) X, A = X X^T
// on the matrix divided by its norm bring all singular values near 1; every value between is rounded to bfloat16, as the rule is published. The result, in
// fp32 and of the given shape, is multiplied by sqrt(max(1, rows / columns)). Shapes of three dimensions are batches of matrices; of more,
// matrices of first dimension x rest. Deterministic: every rank that has the same matrix gets the same bits.
at::Tensor orthogonalised(const at::Tensor& matrix);

}  // namespace deepspeed::optim
