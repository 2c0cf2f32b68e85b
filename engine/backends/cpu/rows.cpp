#include "backends/rows.h"

#include <ATen/Parallel.h>

#include <cstring>

#include "memory/tensor_source.h"
#include "reprise/error.h"

namespace reprise {

at::Tensor embed_streams(const at::Tensor& table, const at::Tensor& ids, int64_t streams) {
  const int64_t rows = ids.size(0);
  const int64_t hidden = table.size(1);
  at::Tensor x = empty_tensor({rows, streams, hidden}, table.options());
  const size_t row_bytes = static_cast<size_t>(hidden) * table.element_size();
  const auto* in = static_cast<const std::byte*>(table.const_data_ptr());
  auto* out = static_cast<std::byte*>(x.mutable_data_ptr());
  const int64_t* id = ids.const_data_ptr<int64_t>();
  at::parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t s = 0; s < streams; ++s) {
        std::memcpy(out + static_cast<size_t>(t * streams + s) * row_bytes, in + static_cast<size_t>(id[t]) * row_bytes,
                    row_bytes);
      }
    }
  });
  return x;
}

at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& rows) {
  at::DimVector sizes(x.sizes());
  sizes[0] = rows.size(0);
  at::Tensor y = empty_tensor(sizes, x.options());
  gather_rows_out(x, rows, y);
  return y;
}

void gather_rows_out(const at::Tensor& x, const at::Tensor& rows, const at::Tensor& y) {
  const int64_t count = rows.size(0);
  REPRISE_ENSURE(x.is_contiguous() && y.is_contiguous() && y.scalar_type() == x.scalar_type() && y.size(0) >= count &&
                     y.sizes().slice(1) == x.sizes().slice(1),
                 "gather_rows takes dense rows to dense rows like them");
  if (count == 0) return;
  const size_t row_bytes = y.nbytes() / static_cast<size_t>(y.size(0));
  cpu::copy_rows(static_cast<const std::byte*>(x.const_data_ptr()), rows.const_data_ptr<int64_t>(), count, row_bytes,
                 static_cast<std::byte*>(y.mutable_data_ptr()));
}

void compact_rows(const at::Tensor& x, const at::Tensor& rows) {
  REPRISE_ENSURE(x.is_contiguous(), "compact_rows takes dense rows");
  if (x.size(0) == 0) return;
  const size_t row_bytes = x.nbytes() / static_cast<size_t>(x.size(0));
  auto* data = static_cast<std::byte*>(x.mutable_data_ptr());
  const int64_t* row = rows.const_data_ptr<int64_t>();
  // Ascending rows never overwrite what a later one reads.
  for (int64_t i = 0; i < rows.size(0); ++i) {
    if (row[i] != i)
      std::memcpy(data + static_cast<size_t>(i) * row_bytes, data + static_cast<size_t>(row[i]) * row_bytes, row_bytes);
  }
}

namespace cpu {

void copy_rows(const std::byte* in, const int64_t* rows, int64_t count, size_t row_bytes, std::byte* out) {
  at::parallel_for(0, count, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(out + static_cast<size_t>(i) * row_bytes, in + static_cast<size_t>(rows[i]) * row_bytes, row_bytes);
    }
  });
}

}  // namespace cpu

}  // namespace reprise
