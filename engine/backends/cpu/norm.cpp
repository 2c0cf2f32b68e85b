#include "backends/norm.h"

#include <ATen/Parallel.h>

#include "backends/cpu/row_ops.h"
#include "backends/cpu/scratch.h"
#include "memory/tensor_source.h"

namespace reprise::cpu {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const int64_t rows = x.size(0);
  const int64_t n = x.size(1);
  at::Tensor y = empty_tensor({rows, n}, x.options());
  const size_t row_bytes = static_cast<size_t>(n) * x.element_size();
  const auto dtype = x.scalar_type();
  const auto* in = static_cast<const std::byte*>(x.const_data_ptr());
  auto* out = static_cast<std::byte*>(y.mutable_data_ptr());
  const float* w = weight.const_data_ptr<float>();
  at::parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
    ScratchFrame frame;
    float* wide = frame.take<float>(n);
    for (int64_t t = begin; t < end; ++t) {
      load_row(in + static_cast<size_t>(t) * row_bytes, dtype, wide, n);
      rms_norm(wide, w, static_cast<float>(eps), wide, n);
      store_row(wide, out + static_cast<size_t>(t) * row_bytes, dtype, n);
    }
  });
  return y;
}

}  // namespace reprise::cpu
