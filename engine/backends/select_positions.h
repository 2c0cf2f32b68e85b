#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "backends/paged_cells.h"
#include "reprise/forward_context.h"

namespace reprise {

struct IndexerParams {
  int64_t num_heads = 0;     // n_idx
  int64_t head_dim = 0;      // d_idx
  int64_t ratio = 0;         // tokens per compressed position
  PagedCells keys;           // index keys of the KV source
  float head_scale = 1;      // of every head weight
  at::Tensor candidates_in;  // [>= T, blocks] int32 ascending, -1 behind the last; undefined = every visible position
  int64_t candidate_block_size = 0;
};

// Where a selection goes, its first T rows: ascending, -1 behind the last.
struct Selection {
  at::Tensor positions;   // [>= T, top-k] int32
  at::Tensor candidates;  // [>= T, blocks] int32 block ids; undefined: not wanted
};

// Scores every visible compressed position c < (p + 1) / ratio (among the candidates where given),
//   score = sum_h head_scale w[t, h] relu(q[t, h] . k[c])   with q [T, n_idx * d_idx] rotated and rounded, w [T, n_idx]
// float32, and selects the best; equal scores: the lower position wins. Candidates are the best blocks of
// candidate_block_size positions, chosen the same way (block score = its best visible position; the latest visible
// block is always among them).
void select_compressed(const at::Tensor& q, const at::Tensor& w, const AttentionMetadata& rows,
                       const IndexerParams& params, const Selection& selection);

}  // namespace reprise
