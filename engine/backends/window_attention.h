#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "backends/paged_cells.h"
#include "reprise/forward_context.h"

namespace reprise {

// What a layer's attention is, whichever rows it runs on.
struct AttentionParams {
  int64_t num_heads = 0;  // N
  int64_t head_dim = 0;   // D
  PagedCells window;
  PagedCells compressed;  // cells undefined: window attention only
  at::Tensor selection;   // [>= T, top-k] int32 compressed positions, ascending, -1 behind the last
  at::Tensor sink;        // [N] float32: extra logit in the denominator
  RopeRows rope;          // of the query's position
};

// Attention of each row over its window keys and its selected compressed keys, scale D^-0.5, one latent per key as key
// and value. q [T, N * D] without rotation; returns [T, N * D] in q's dtype, rotated back; a padding row's output is
// zero. Reads no cell beyond these keys.
at::Tensor window_sparse_attention(const at::Tensor& q, const AttentionMetadata& rows, const AttentionParams& params);

}  // namespace reprise
