#include "backends/cache_write.h"

#include <ATen/Parallel.h>

#include "backends/cpu/number_formats.h"
#include "backends/cpu/row_ops.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/targets.h"
#include "memory/tensor_source.h"

namespace reprise::cpu {

namespace {

REPRISE_CLONES void round_row(float* row, int64_t n, CacheFormat format) {
  switch (format) {
    case CacheFormat::kNone:
      return;
    case CacheFormat::kFp8:
      qdq_fp8(row, n);
      return;
    case CacheFormat::kMxfp4:
      qdq_mxfp4(row, n);
      return;
    case CacheFormat::kNvfp4:
      qdq_nvfp4(row, n);
      return;
  }
}

}  // namespace

void write_cells(const at::Tensor& x, const CellWrite& write, const at::Tensor& cells) {
  const int64_t n = x.size(1);
  const size_t x_bytes = static_cast<size_t>(n) * x.element_size();
  const size_t cell_bytes = static_cast<size_t>(n) * cells.element_size();
  const auto x_dtype = x.scalar_type();
  const auto cell_dtype = cells.scalar_type();
  const auto* in = static_cast<const std::byte*>(x.const_data_ptr());
  auto* out = static_cast<std::byte*>(cells.mutable_data_ptr());
  const int64_t* slot = write.slots.const_data_ptr<int64_t>();
  const int64_t half = write.rope.cos.size(1);
  const float* cos = write.rope.cos.const_data_ptr<float>();
  const float* sin = write.rope.sin.const_data_ptr<float>();
  const float* w = write.norm.defined() ? write.norm.const_data_ptr<float>() : nullptr;
  const auto eps = static_cast<float>(write.eps);
  at::parallel_for(0, x.size(0), 8, [&](int64_t begin, int64_t end) {
    ScratchFrame frame;
    float* wide = frame.take<float>(n);
    for (int64_t t = begin; t < end; ++t) {
      if (slot[t] == 0) continue;
      std::byte* cell = out + static_cast<size_t>(slot[t]) * cell_bytes;
      load_row(in + static_cast<size_t>(t) * x_bytes, x_dtype, wide, n);
      if (w != nullptr) rms_norm(wide, w, eps, wide, n);
      rotate(wide, n, cos + t * half, sin + t * half, half, false);
      round_row(wide, n, write.format);
      store_row(wide, cell, cell_dtype, n);
    }
  });
}

at::Tensor rotate_and_round(const at::Tensor& x, int64_t head_dim, const RopeRows& rope, CacheFormat format) {
  const int64_t n = x.size(1);
  at::Tensor y = empty_tensor(x.sizes(), x.options());
  const size_t row_bytes = static_cast<size_t>(n) * x.element_size();
  const auto dtype = x.scalar_type();
  const auto* in = static_cast<const std::byte*>(x.const_data_ptr());
  auto* out = static_cast<std::byte*>(y.mutable_data_ptr());
  const int64_t half = rope.cos.size(1);
  const float* cos = rope.cos.const_data_ptr<float>();
  const float* sin = rope.sin.const_data_ptr<float>();
  at::parallel_for(0, x.size(0), 4, [&](int64_t begin, int64_t end) {
    ScratchFrame frame;
    float* wide = frame.take<float>(n);
    for (int64_t t = begin; t < end; ++t) {
      load_row(in + static_cast<size_t>(t) * row_bytes, dtype, wide, n);
      for (int64_t h = 0; h < n; h += head_dim) {
        rotate(wide + h, head_dim, cos + t * half, sin + t * half, half, false);
        round_row(wide + h, head_dim, format);
      }
      store_row(wide, out + static_cast<size_t>(t) * row_bytes, dtype, n);
    }
  });
  return y;
}

}  // namespace reprise::cpu
