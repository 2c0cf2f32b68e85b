#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "backends/cache_write.h"
#include "backends/linear.h"
#include "checkpoint/weight_source.h"
#include "context/kv_cache.h"
#include "reprise/config.h"
#include "reprise/forward_context.h"

namespace reprise {

// Publishes a KV source's compressed KV and index keys: attn.compressor.* and attn.indexer.{wk, k_norm}.
class Compressor {
 public:
  Compressor(const ModelConfig& config, int64_t layer, const std::string& attn_prefix, WeightSource& weights,
             at::ScalarType dtype, bool cache_rounding);

  // x [T, H] (normed): writes the groups that the context's rows complete, keeps the trailing incomplete ones.
  void publish(const at::Tensor& x, KvCache& cache) const;

 private:
  int64_t layer_;
  int64_t ratio_;
  size_t cells_;  // of the forward context
  double eps_;
  at::ScalarType dtype_;
  CacheFormat kv_format_;
  CacheFormat key_format_;
  PackedWeight wkv_;    // float32 [D, H]
  PackedWeight wgate_;  // float32 [D, H], ratio > 1
  at::Tensor norm_;     // float32 [D]
  PackedWeight wk_;     // [d_idx, D]
  at::Tensor k_norm_;   // float32 [d_idx]
};

}  // namespace reprise
