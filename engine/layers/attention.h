#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "backends/linear.h"
#include "checkpoint/weight_source.h"
#include "context/kv_cache.h"
#include "layers/compressor.h"
#include "layers/indexer.h"
#include "layers/row_buffers.h"
#include "reprise/config.h"

namespace reprise {

// CSA2 attention of one layer, in two halves: what it writes for every row it receives, and what it computes for the
// rows that are kept. Both read the current forward context.
class Attention {
 public:
  Attention(const ModelConfig& config, int64_t layer, const std::string& prefix, WeightSource& weights,
            at::ScalarType dtype, bool cache_rounding);

  // x [T, H] (normed): writes window KV and, at a KV source, compressed KV and index keys.
  void publish(const at::Tensor& x, KvCache& cache) const;
  // x [T, H] (normed) -> [T, H] in x's dtype.
  at::Tensor compute(const at::Tensor& x, KvCache& cache, RowBuffers& buffers) const;

 private:
  int64_t layer_;
  int64_t kv_source_;  // -1: window only
  int64_t ratio_;
  int64_t num_heads_;
  int64_t head_dim_;
  double eps_;
  bool rounding_;
  int32_t rope_;
  PackedWeight wq_a_;   // [q_lora_rank, H]
  at::Tensor q_norm_;   // float32 [q_lora_rank]
  PackedWeight wq_b_;   // [N * D, q_lora_rank]
  PackedWeight wkv_;    // [D, H]
  at::Tensor kv_norm_;  // float32 [D]
  at::Tensor sink_;     // float32 [N]
  PackedWeight wo_a_;   // o_groups of [o_lora_rank, N / o_groups * D]
  PackedWeight wo_b_;   // [H, o_groups * o_lora_rank]
  std::optional<Compressor> compressor_;
  std::optional<Indexer> indexer_;
};

}  // namespace reprise
