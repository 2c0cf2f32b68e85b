#pragma once

#include <ATen/core/Tensor.h>

namespace reprise {

// w * (x * rsqrt(mean(x^2) + eps)) per row in float32, cast to x's dtype. x [T, n] dense rows, weight float32 [n].
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace reprise
