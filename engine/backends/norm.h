#pragma once

#include <ATen/core/Tensor.h>

namespace reprise {

// w * (x * rsqrt(mean(x^2) + eps)) per row in float32, cast to x's dtype. x [T, n] dense rows, weight float32 [n].
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// x as float32 (x itself when it is).
at::Tensor to_float(const at::Tensor& x);

// x as `dtype` (x itself when it is), rounded to nearest even; dense.
at::Tensor cast_rows(const at::Tensor& x, at::ScalarType dtype);

// Each token's embedding [vocab, H] repeated in every stream: [T, streams, H]. Ids int64 [T].
at::Tensor embed_streams(const at::Tensor& table, const at::Tensor& ids, int64_t streams);

// Rows `rows` (int64 [n], ascending or not) of x [T, ...], dense, as a new tensor.
at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& rows);

// x[i] = x[rows[i]] in place for ascending int64 rows; the rows of x behind them are left as they are.
void compact_rows(const at::Tensor& x, const at::Tensor& rows);

}  // namespace reprise
