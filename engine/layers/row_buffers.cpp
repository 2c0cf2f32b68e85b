#include "layers/row_buffers.h"

#include <ATen/ops/full.h>

namespace reprise {

RowBuffers::RowBuffers(const ModelConfig& config, int64_t max_rows) {
  if (config.kv_source_layer_ids.empty()) return;
  selection = at::full({max_rows, config.index_topk}, -1, at::kInt);
  if (config.candidate_source_layer_id >= 0)
    candidates = at::full({max_rows, config.candidate_topk_blocks}, -1, at::kInt);
}

}  // namespace reprise
