#include "backends/embedding.h"

#include <ATen/Parallel.h>

#include <cstddef>
#include <cstring>

#include "memory/tensor_source.h"

namespace reprise::cpu {

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

at::Tensor lookup_rows(const at::Tensor& table, const at::Tensor& rows) {
  at::Tensor e = empty_tensor({rows.size(0), rows.size(1) * table.size(1)}, table.options());
  const size_t row_bytes = static_cast<size_t>(table.size(1)) * table.element_size();
  const auto* in = static_cast<const std::byte*>(table.const_data_ptr());
  auto* out = static_cast<std::byte*>(e.mutable_data_ptr());
  const int64_t* row = rows.const_data_ptr<int64_t>();
  at::parallel_for(0, rows.numel(), 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(out + static_cast<size_t>(i) * row_bytes, in + static_cast<size_t>(row[i]) * row_bytes, row_bytes);
    }
  });
  return e;
}

}  // namespace reprise::cpu
