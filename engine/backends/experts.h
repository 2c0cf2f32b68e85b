#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "backends/linear.h"

namespace reprise {

// One gated feed-forward network: w2(silu(min(w1 x, limit)) * clamp(w3 x, -limit, limit)).
struct GatedWeights {
  PackedWeight w1;  // [I, H]
  PackedWeight w2;  // [H, I]
  PackedWeight w3;  // [I, H]
};

// Which experts each row goes to, ids ascending. [T, k] int32 and float32.
struct ExpertRoutes {
  at::Tensor experts;
  at::Tensor weights;
};

// The `k` best experts of each row by sqrt(softplus(logit)) + bias, equal scores: the lower id; weight = its share of
// the chosen sqrt(softplus(logit)) times `scale`. logits [T, E] float32, bias [E] float32.
ExpertRoutes route_experts(const at::Tensor& logits, const at::Tensor& bias, int64_t k, double scale);

// y[t] = shared(x[t]) + sum over the row's experts, ids ascending, of weight * expert(x[t]); sums in float32, y in x's
// dtype.
at::Tensor mixture_of_experts(const at::Tensor& x, const ExpertRoutes& routes, const std::vector<GatedWeights>& experts,
                              const GatedWeights& shared, double swiglu_limit);

}  // namespace reprise
