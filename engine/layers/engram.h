#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "backends/linear.h"
#include "checkpoint/weight_source.h"
#include "reprise/config.h"

namespace reprise {

// Adds hashed n-gram memory to the residual streams: layers.i.engram.*
class Engram {
 public:
  // `table_rows`: rows of the embedding table, the sum of the layer's primes.
  Engram(const ModelConfig& config, const std::string& prefix, int64_t table_rows, WeightSource& weights,
         at::ScalarType dtype);

  // rows [T, tables] int64 of the embedding table; residual [T, S, H] in place.
  void forward(const at::Tensor& rows, at::Tensor& residual) const;

 private:
  double eps_;
  at::Tensor table_;      // [table_rows, engram_head_dim]
  PackedWeight wkv_;      // [S * H + H, tables * engram_head_dim]
  at::Tensor qk_weight_;  // float32 [S, H]
};

}  // namespace reprise
