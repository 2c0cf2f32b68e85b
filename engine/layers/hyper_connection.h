#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "backends/stream_mix.h"
#include "checkpoint/weight_source.h"
#include "reprise/config.h"

namespace reprise {

// Makes the mixes of one sub-layer (attention or MoE) from the residual streams: hc_attn_* and hc_ffn_*.
class HyperConnection {
 public:
  HyperConnection(const ModelConfig& config, const std::string& prefix, WeightSource& weights);

  // residual [T, S, H]
  StreamMix mix(const at::Tensor& residual) const;

 private:
  PackedWeight fn_;
  StreamMixParams params_;
};

}  // namespace reprise
