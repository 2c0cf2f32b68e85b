#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "reprise/forward_context.h"

namespace reprise {

// The rounding a row goes through before it is cached.
enum class CacheFormat { kNone, kFp8, kMxfp4, kNvfp4 };

// What becomes of T rows on their way into cells.
struct CellWrite {
  at::Tensor norm;  // float32 [D], the weight of an RMS norm; undefined: no norm
  double eps = 0;   // the norm's
  RopeRows rope;
  CacheFormat format = CacheFormat::kNone;
  at::Tensor slots;  // [T] int64, distinct but for the pad slot 0
};

// cells[slots[t]] = format(rope(rmsnorm(x[t]))) for rows whose slot is not the pad slot. x [T, D] and cells [n, D]
// float32 or bfloat16.
void write_cells(const at::Tensor& x, const CellWrite& write, const at::Tensor& cells);

// Rounds rows in place of a copy: rope then format, without a norm. x [T, heads * D] -> the same shape, each head by
// itself.
at::Tensor rotate_and_round(const at::Tensor& x, int64_t head_dim, const RopeRows& rope, CacheFormat format);

}  // namespace reprise
