#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

namespace reprise {

// Each token's embedding [vocab, H] repeated in every stream: [T, streams, H]. Ids int64 [T].
at::Tensor embed_streams(const at::Tensor& table, const at::Tensor& ids, int64_t streams);

// Rows `rows` (int64 [n], ascending or not) of x [T, ...], dense, as a new tensor.
at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& rows);

// The same into the first rows of y, dense [>= n, ...] of x's row shape and dtype.
void gather_rows_out(const at::Tensor& x, const at::Tensor& rows, const at::Tensor& y);

// x[i] = x[rows[i]] in place for ascending int64 rows; the rows of x behind them are left as they are.
void compact_rows(const at::Tensor& x, const at::Tensor& rows);

namespace cpu {

// out[i] = in[rows[i]] for `count` rows of `row_bytes` bytes each.
void copy_rows(const std::byte* in, const int64_t* rows, int64_t count, size_t row_bytes, std::byte* out);

}  // namespace cpu

}  // namespace reprise
