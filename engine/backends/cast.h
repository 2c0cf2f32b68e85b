#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace reprise {

// x as float32 (x itself when it is).
at::Tensor to_float(const at::Tensor& x);

// Dense float32 x as `dtype` (x itself when it is), rounded to nearest even.
at::Tensor cast_rows(const at::Tensor& x, at::ScalarType dtype);

// The values of dense float32 or bfloat16 x as floats in host memory, as many as `out` has.
void read_floats(const at::Tensor& x, std::span<float> out);

}  // namespace reprise
