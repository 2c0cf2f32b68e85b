#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "backends/window_attention.h"

namespace reprise {

struct IndexerParams {
  int64_t num_heads = 0;  // n_idx
  int64_t head_dim = 0;   // d_idx
  int64_t ratio = 0;      // tokens per compressed position
  RowPlaces rows;
  PagedCells keys;           // index keys of the KV source
  float head_scale = 1;      // of every head weight
  at::Tensor candidates_in;  // [>= T, blocks] int32 ascending, -1 behind the last; undefined = every visible position
  int64_t candidate_block_size = 0;
};

// Scores every visible compressed position c < (p + 1) / ratio (among the candidates where given),
//   score = sum_h head_scale w[t, h] relu(q[t, h] . k[c])   with q [T, n_idx * d_idx] rotated and rounded, w [T, n_idx]
// float32, and keeps the best; equal scores: the lower position wins. The first T rows of selection [>= T, top-k] int32
// get them ascending, -1 behind the last. Those of candidates_out [>= T, blocks] int32, where defined, get the best
// blocks of candidate_block_size positions the same way (block score = its best visible position; the latest visible
// block is always among them).
void select_compressed(const at::Tensor& q, const at::Tensor& w, const IndexerParams& params, at::Tensor selection,
                       at::Tensor candidates_out);

}  // namespace reprise
