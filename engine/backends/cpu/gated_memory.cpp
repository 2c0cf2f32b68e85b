#include "backends/gated_memory.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "backends/cpu/row_ops.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/targets.h"
#include "backends/cpu/vector_math.h"

namespace reprise::cpu {

namespace {

REPRISE_CLONES void multiply(const float* x, const float* y, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * y[i];
}

}  // namespace

void add_gated_memory(const at::Tensor& kv, const at::Tensor& qk_weight, double eps, const at::Tensor& residual) {
  const int64_t streams = residual.size(1);
  const int64_t hidden = residual.size(2);
  const int64_t width = (streams + 1) * hidden;
  const auto dtype = residual.scalar_type();
  const size_t size = residual.element_size();
  auto* x = static_cast<std::byte*>(residual.mutable_data_ptr());
  const auto* in = static_cast<const std::byte*>(kv.const_data_ptr());
  const size_t kv_bytes = static_cast<size_t>(width) * kv.element_size();
  const float* weight = qk_weight.const_data_ptr<float>();
  const auto epsilon = static_cast<float>(eps);
  const auto n = static_cast<float>(hidden);
  at::parallel_for(0, residual.size(0), 4, [&](int64_t begin, int64_t end) {
    ScratchFrame frame;
    float* memory = frame.take<float>(width);
    float* stream = frame.take<float>(hidden);
    float* weighted = frame.take<float>(hidden);
    for (int64_t t = begin; t < end; ++t) {
      load_row(in + static_cast<size_t>(t) * kv_bytes, kv.scalar_type(), memory, width);
      const float* value = memory + streams * hidden;
      for (int64_t s = 0; s < streams; ++s) {
        std::byte* target = x + static_cast<size_t>((t * streams + s) * hidden) * size;
        const float* key = memory + s * hidden;
        load_row(target, dtype, stream, hidden);
        multiply(stream, weight + s * hidden, weighted, hidden);
        const float d = dot(weighted, key, hidden) / std::sqrt(sum_of_squares(stream, hidden) / n + epsilon) /
                        std::sqrt(sum_of_squares(key, hidden) / n + epsilon) / std::sqrt(n);
        const float sign = d > 0 ? 1.0f : (d < 0 ? -1.0f : 0.0f);
        const float gate = sigmoid_f(sign * std::sqrt(std::max(std::abs(d), 1e-6f)));
        add_scaled(gate, value, stream, hidden);
        store_row(stream, target, dtype, hidden);
      }
    }
  });
}

}  // namespace reprise::cpu
