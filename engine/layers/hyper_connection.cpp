#include "layers/hyper_connection.h"

#include "layers/take_linear.h"

namespace reprise {

HyperConnection::HyperConnection(const ModelConfig& config, const std::string& prefix, WeightSource& weights) {
  const int64_t outputs = config.hc_mult * (config.hc_mult + 2);
  fn_ = take_linear(weights, prefix + "_fn", outputs, config.hc_mult * config.hidden_size, at::kFloat);
  params_ = {.base = weights.take(prefix + "_base", {outputs}, at::kFloat),
             .scale = weights.take(prefix + "_scale", {3}, at::kFloat),
             .sinkhorn_iters = config.hc_sinkhorn_iters,
             .hc_eps = config.hc_eps,
             .rms_norm_eps = config.rms_norm_eps};
}

StreamMix HyperConnection::mix(const at::Tensor& residual) const { return stream_mix(residual, fn_, params_); }

}  // namespace reprise
