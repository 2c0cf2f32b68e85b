#include "backends/window_attention.h"

#include "backends/kernels.h"
#include "backends/room.h"
#include "reprise/error.h"

namespace reprise {

at::Tensor window_sparse_attention(const at::Tensor& q, const AttentionMetadata& rows, const AttentionParams& params) {
  REPRISE_ENSURE(q.is_contiguous() && q.size(1) == params.num_heads * params.head_dim, "queries are [T, N * D]");
  REPRISE_ENSURE(
      !params.compressed.cells.defined() || (params.selection.is_contiguous() && params.selection.size(0) >= q.size(0)),
      "a dense row of selection for every query row");
  return room_of(q).window_sparse_attention(q, rows, params);
}

}  // namespace reprise
