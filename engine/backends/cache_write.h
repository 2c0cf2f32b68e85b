#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "backends/window_attention.h"

namespace reprise {

// The rounding a row goes through before it is cached.
enum class CacheFormat { kNone, kFp8, kMxfp4, kNvfp4 };

// cells[slots[t]] = format(rope(rmsnorm(x[t]))) for rows whose slot is not the pad slot 0. x [T, D] float32 or
// bfloat16; weight float32 [D]; an undefined weight skips the norm. Slots int64 [T], distinct but for the pad slot.
void write_cells(const at::Tensor& x, const at::Tensor& weight, double eps, const RopeAngles& rope, CacheFormat format,
                 const at::Tensor& slots, at::Tensor& cells);

// Rounds rows in place of a copy: rope then format, without a norm. x [T, heads * D] -> the same shape, each head by
// itself.
at::Tensor rotate_and_round(const at::Tensor& x, int64_t head_dim, const RopeAngles& rope, CacheFormat format);

}  // namespace reprise
