#include "backends/rows.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "memory/tensor_source.h"

namespace reprise::cpu {

namespace {

// Of x [n > 0, ...].
size_t row_bytes_of(const at::Tensor& x) { return x.nbytes() / static_cast<size_t>(x.size(0)); }

}  // namespace

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

void gather_rows(const at::Tensor& x, const at::Tensor& rows, const at::Tensor& y) {
  const size_t row_bytes = row_bytes_of(x);
  const auto* in = static_cast<const std::byte*>(x.const_data_ptr());
  auto* out = static_cast<std::byte*>(y.mutable_data_ptr());
  const int64_t* row = rows.const_data_ptr<int64_t>();
  at::parallel_for(0, rows.numel(), 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(out + static_cast<size_t>(i) * row_bytes, in + static_cast<size_t>(row[i]) * row_bytes, row_bytes);
    }
  });
}

void compact_rows(const at::Tensor& x, const at::Tensor& rows) {
  const size_t row_bytes = row_bytes_of(x);
  auto* data = static_cast<std::byte*>(x.mutable_data_ptr());
  const int64_t* row = rows.const_data_ptr<int64_t>();
  // Ascending rows never overwrite what a later one reads.
  for (int64_t i = 0; i < rows.size(0); ++i) {
    if (row[i] != i)
      std::memcpy(data + static_cast<size_t>(i) * row_bytes, data + static_cast<size_t>(row[i]) * row_bytes, row_bytes);
  }
}

void copy_rows(const at::Tensor& x, const at::Tensor& y) {
  std::memcpy(y.mutable_data_ptr(), x.const_data_ptr(), x.nbytes());
}

void fill_rows(const at::Tensor& x, int64_t first, int64_t value) {
  const int64_t row_size = x.numel() / x.size(0);
  const int64_t begin = first * row_size;
  const int64_t count = x.numel() - begin;
  if (value == 0) {
    const size_t size = x.element_size();
    std::memset(static_cast<std::byte*>(x.mutable_data_ptr()) + static_cast<size_t>(begin) * size, 0,
                static_cast<size_t>(count) * size);
  } else if (x.scalar_type() == at::kInt) {
    std::fill_n(x.mutable_data_ptr<int32_t>() + begin, count, static_cast<int32_t>(value));
  } else {
    std::fill_n(x.mutable_data_ptr<int64_t>() + begin, count, value);
  }
}

}  // namespace reprise::cpu
