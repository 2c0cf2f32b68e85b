#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "backends/experts.h"
#include "checkpoint/weight_source.h"
#include "reprise/config.h"

namespace reprise {

// Routed experts and the shared one: ffn.*
class MixtureOfExperts {
 public:
  MixtureOfExperts(const ModelConfig& config, const std::string& prefix, WeightSource& weights, at::ScalarType dtype);

  // x [T, H] (normed) -> [T, H]
  at::Tensor forward(const at::Tensor& x) const;

 private:
  int64_t experts_per_token_;
  double scale_;
  double swiglu_limit_;
  PackedWeight gate_;      // float32 [E, H]
  at::Tensor bias_;        // float32 [E]
  PackedExperts experts_;  // the shared one last
};

}  // namespace reprise
