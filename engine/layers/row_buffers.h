#pragma once

#include <ATen/core/Tensor.h>

#include "reprise/config.h"

namespace reprise {

// Per-row results that an index source publishes for the layers after it. They stand in buffers of fixed size, of which
// the first T rows belong to the current batch; when rows are trimmed the buffers are compacted in place.
struct RowBuffers {
  at::Tensor selection;  // [max_rows, index_topk] int32 compressed positions, ascending, -1 behind the last
  at::Tensor
      candidates;  // [max_rows, candidate_topk_blocks] int32 block ids likewise; undefined without a candidate source

  RowBuffers(const ModelConfig& config, int64_t max_rows);
};

}  // namespace reprise
