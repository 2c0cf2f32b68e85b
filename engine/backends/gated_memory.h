#pragma once

#include <ATen/core/Tensor.h>

namespace reprise {

// residual[t, s, :] += gate[t, s] value[t, :], in place, with kv [T, S * H + H] float32 or the residual's dtype = keys
// of each stream, then the value, and gate[t, s] = sigmoid(sign(d) sqrt(max(|d|, 1e-6))), d = sum_h(X q_weight k_weight
// key) rsqrt(mean X^2 + eps) rsqrt(mean key^2 + eps) H^-0.5. `qk_weight` = q_weight * k_weight [S, H] float32.
void add_gated_memory(const at::Tensor& kv, const at::Tensor& qk_weight, double eps, const at::Tensor& residual);

}  // namespace reprise
