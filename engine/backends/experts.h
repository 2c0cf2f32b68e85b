#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>

#include "backends/linear.h"

namespace reprise {

// One gated feed-forward network: w2(silu(min(w1 x, limit)) * clamp(w3 x, -limit, limit)).
struct GatedWeights {
  at::Tensor w1;  // [I, H]
  at::Tensor w2;  // [H, I]
  at::Tensor w3;  // [I, H]
};

// The networks of a layer, of one shape, in stacks.
struct PackedExperts {
  PackedWeight w1, w2, w3;

  int64_t count() const { return w1.count(); }
};

// Packs `count` networks as `lend` gives them, one after another.
PackedExperts pack_experts(int64_t count, c10::function_ref<GatedWeights(int64_t expert)> lend);

// The experts of each row and their weights, [T, k + 1] int32 and float32: first the shared one, whose number is that
// of the routed experts, with weight 1; then the routed ones, ids ascending.
struct ExpertRoutes {
  at::Tensor experts;
  at::Tensor weights;
};

// The `k` best experts of each row by sqrt(softplus(logit)) + bias, equal scores: the lower id; weight = its share of
// the chosen sqrt(softplus(logit)) times `scale`. logits [T, E] float32, bias [E] float32.
ExpertRoutes route_experts(const at::Tensor& logits, const at::Tensor& bias, int64_t k, double scale);

// Each row through each of its experts: x [T, H], ids [T, n] int32 -> float32 [T * n, H].
at::Tensor run_experts(const at::Tensor& x, const at::Tensor& ids, const PackedExperts& experts, double swiglu_limit);

// y[t] = sum_j weights[t, j] outputs[t * n + j], in the order of j and in float32, as `dtype`. weights [T, n].
at::Tensor sum_experts(const at::Tensor& outputs, const at::Tensor& weights, at::ScalarType dtype);

}  // namespace reprise
