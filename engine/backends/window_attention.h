#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace reprise {

// Cells of a cache group behind a block table: position (or compressed position) c of a request lies in cell
// table[state_slot, c / cells_per_page] * cells_per_page + c % cells_per_page.
struct PagedCells {
  at::Tensor cells;        // [num_cells, D]
  at::Tensor block_table;  // [max_num_seqs, entries] int32
  int64_t cells_per_page = 0;
};

// Where the rows of a batch stand.
struct RowPlaces {
  at::Tensor positions;       // [T] int64
  at::Tensor sequence_index;  // [T] int32; -1 = padding row
  at::Tensor state_slots;     // [sequences] int32
};

// Rotary angles of rows, [T, R/2] float32 each.
struct RopeAngles {
  at::Tensor cos;
  at::Tensor sin;
};

struct AttentionParams {
  int64_t num_heads = 0;  // N
  int64_t head_dim = 0;   // D
  RowPlaces rows;
  at::Tensor window_starts;  // [T] int64: first position whose window KV the row may read
  PagedCells window;
  PagedCells compressed;  // cells undefined: window attention only
  at::Tensor selection;   // [>= T, top-k] int32 compressed positions, ascending, -1 behind the last
  at::Tensor sink;        // [N] float32: extra logit in the denominator
  RopeAngles rope;        // of the query's position
};

// Attention of each row over its window keys and its selected compressed keys, scale D^-0.5, one latent per key as key
// and value. q [T, N * D] without rotation; returns [T, N * D] in q's dtype, rotated back. Reads no cell beyond these
// keys.
at::Tensor window_sparse_attention(const at::Tensor& q, const AttentionParams& params);

}  // namespace reprise
