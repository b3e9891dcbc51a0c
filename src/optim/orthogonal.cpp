#include "optim/orthogonal.h"

#include <ATen/ops/matmul.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::optim {
namespace {

constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr int kIterations = 5;

}  // namespace

at::Tensor orthogonalised(const at::Tensor& matrix) {
  if (matrix.dim() < 2) {
    throw Error(ErrorCode::kUsage, "optim", base::str("Muon: got a tensor of ", matrix.dim(), " dimensions, allowed 2 and more"));
  }
  if (matrix.numel() == 0) return matrix;
  // CPUs multiply fp32 fast: values are rounded between products. Elsewhere bfloat16 is a type with fast products of its own.
  const bool cpu = matrix.is_cpu();
  const auto rounded = [cpu](const at::Tensor& value) { return cpu ? value.to(at::kBFloat16).to(at::kFloat) : value.to(at::kBFloat16); };
  at::Tensor x = rounded(matrix.dim() > 3 ? matrix.reshape({matrix.size(0), -1}) : matrix);
  const double rows = static_cast<double>(x.size(-2)), columns = static_cast<double>(x.size(-1));
  const bool tall = rows > columns;
  if (tall) x = x.mT();
  x = rounded(x.div(rounded(rounded(x.to(at::kFloat).square().sum({-2, -1}, /*keepdim=*/true).sqrt()).add(1e-7))));
  for (int i = 0; i < kIterations; ++i) {
    const at::Tensor a = rounded(at::matmul(x, x.mT()));
    const at::Tensor b = rounded(rounded(a.mul(kB)).add(rounded(rounded(at::matmul(a, a)).mul(kC))));
    x = rounded(rounded(x.mul(kA)).add(rounded(at::matmul(b, x))));
  }
  if (tall) x = x.mT();
  return rounded(x.mul(std::sqrt(std::max(1.0, rows / columns)))).to(at::kFloat).reshape(matrix.sizes());
}

}  // namespace deepspeed::optim
