#pragma once

#include <ATen/core/Tensor.h>

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

// Copies dense rows to the first rows of y, dense with at least as many of the same shape and dtype; the rows of y
// behind them are left as they are. They share no memory.
void copy_rows(const at::Tensor& x, const at::Tensor& y);

// Sets the rows of dense x from `first` on to `value`, which must be 0 where x is neither int32 nor int64.
void fill_rows(const at::Tensor& x, int64_t first, int64_t value);

}  // namespace reprise
