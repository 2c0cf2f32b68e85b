#pragma once

#include <ATen/core/Tensor.h>

namespace reprise {

// w * (x * rsqrt(mean(x^2) + eps)) per row in float32, cast to x's dtype. x [T, n] dense rows, weight float32 [n].
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// x as float32 (x itself when it is).
at::Tensor to_float(const at::Tensor& x);

// x as `dtype` (x itself when it is), rounded to nearest even; dense.
at::Tensor cast_rows(const at::Tensor& x, at::ScalarType dtype);

}  // namespace reprise
