#include "backends/norm.h"

#include <ATen/Parallel.h>

#include "backends/cpu/row_ops.h"
#include "memory/tensor_source.h"
#include "reprise/error.h"

namespace reprise {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const int64_t rows = x.size(0);
  const int64_t n = x.size(1);
  REPRISE_ENSURE(x.is_contiguous() && weight.numel() == n, "rms_norm takes dense rows of the weight's size");
  at::Tensor y = empty_tensor({rows, n}, x.options());
  const size_t row_bytes = static_cast<size_t>(n) * x.element_size();
  const auto dtype = x.scalar_type();
  const auto* in = static_cast<const std::byte*>(x.const_data_ptr());
  auto* out = static_cast<std::byte*>(y.mutable_data_ptr());
  const float* w = weight.const_data_ptr<float>();
  at::parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
    float* wide = cpu::Scratch::get<float>(0, n);
    for (int64_t t = begin; t < end; ++t) {
      cpu::load_row(in + static_cast<size_t>(t) * row_bytes, dtype, wide, n);
      cpu::rms_norm(wide, w, static_cast<float>(eps), wide, n);
      cpu::store_row(wide, out + static_cast<size_t>(t) * row_bytes, dtype, n);
    }
  });
  return y;
}

at::Tensor to_float(const at::Tensor& x) {
  if (x.scalar_type() == at::kFloat) return x;
  REPRISE_ENSURE(x.is_contiguous(), "to_float takes a dense tensor");
  at::Tensor y = empty_tensor(x.sizes(), x.options().dtype(at::kFloat));
  const auto* in = static_cast<const std::byte*>(x.const_data_ptr());
  float* out = y.mutable_data_ptr<float>();
  const size_t size = x.element_size();
  at::parallel_for(0, x.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
    cpu::load_row(in + static_cast<size_t>(begin) * size, x.scalar_type(), out + begin, end - begin);
  });
  return y;
}

at::Tensor cast_rows(const at::Tensor& x, at::ScalarType dtype) {
  if (x.scalar_type() == dtype) return x;
  REPRISE_ENSURE(x.is_contiguous() && x.scalar_type() == at::kFloat, "cast_rows takes a dense float32 tensor");
  at::Tensor y = empty_tensor(x.sizes(), x.options().dtype(dtype));
  const float* in = x.const_data_ptr<float>();
  auto* out = static_cast<std::byte*>(y.mutable_data_ptr());
  const size_t size = y.element_size();
  at::parallel_for(0, x.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
    cpu::store_row(in + begin, out + static_cast<size_t>(begin) * size, dtype, end - begin);
  });
  return y;
}

}  // namespace reprise
