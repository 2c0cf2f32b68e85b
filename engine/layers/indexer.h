#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "backends/linear.h"
#include "checkpoint/weight_source.h"
#include "context/kv_cache.h"
#include "layers/row_buffers.h"
#include "reprise/config.h"

namespace reprise {

// Selects compressed positions at an index source: attn.indexer.{wq_b, weights_proj}.
class Indexer {
 public:
  Indexer(const ModelConfig& config, int64_t layer, const std::string& attn_prefix, WeightSource& weights,
          at::ScalarType dtype, bool cache_rounding);

  // x [T, H] (normed), query_latent [T, q_lora_rank]: fills the first T rows of the buffers under the current context.
  void select(const at::Tensor& x, const at::Tensor& query_latent, KvCache& cache, RowBuffers& buffers) const;

 private:
  int64_t source_;  // the KV source whose index keys are scored
  int64_t ratio_;
  int64_t num_heads_;
  int64_t head_dim_;
  int64_t block_size_;
  bool makes_candidates_;
  bool reads_candidates_;
  bool rounding_;
  PackedWeight wq_b_;          // [n_idx * d_idx, q_lora_rank]
  PackedWeight weights_proj_;  // [n_idx, H]
};

}  // namespace reprise
