#include "backends/cast.h"

#include <ATen/Parallel.h>

#include "backends/cpu/row_ops.h"

namespace reprise::cpu {

namespace {

// Values below which a second thread does not pay.
constexpr int64_t kGrain = 1 << 16;

void widen_values(const at::Tensor& x, float* out) {
  const auto* in = static_cast<const std::byte*>(x.const_data_ptr());
  const size_t size = x.element_size();
  at::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    load_row(in + static_cast<size_t>(begin) * size, x.scalar_type(), out + begin, end - begin);
  });
}

}  // namespace

void cast(const at::Tensor& x, const at::Tensor& y) {
  if (y.scalar_type() == at::kFloat) {
    widen_values(x, y.mutable_data_ptr<float>());
    return;
  }
  const float* in = x.const_data_ptr<float>();
  auto* out = static_cast<std::byte*>(y.mutable_data_ptr());
  const size_t size = y.element_size();
  at::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    store_row(in + begin, out + static_cast<size_t>(begin) * size, y.scalar_type(), end - begin);
  });
}

void read_floats(const at::Tensor& x, std::span<float> out) { widen_values(x, out.data()); }

}  // namespace reprise::cpu
