#include "layers/moe.h"

#include "backends/cast.h"
#include "layers/take_linear.h"
#include "reprise/error.h"

namespace reprise {

namespace {

GatedWeights take_expert(const ModelConfig& config, const std::string& prefix, WeightSource& weights,
                         at::ScalarType dtype) {
  const int64_t inner = config.moe_intermediate_size;
  return {.w1 = weights.take(prefix + ".w1.weight", {inner, config.hidden_size}, dtype),
          .w2 = weights.take(prefix + ".w2.weight", {config.hidden_size, inner}, dtype),
          .w3 = weights.take(prefix + ".w3.weight", {inner, config.hidden_size}, dtype)};
}

}  // namespace

MixtureOfExperts::MixtureOfExperts(const ModelConfig& config, const std::string& prefix, WeightSource& weights,
                                   at::ScalarType dtype)
    : experts_per_token_(config.num_experts_per_tok),
      scale_(config.routed_scaling_factor),
      swiglu_limit_(config.swiglu_limit),
      gate_(take_linear(weights, prefix + ".gate.weight", config.n_routed_experts, config.hidden_size, at::kFloat)),
      bias_(weights.take(prefix + ".gate.bias", {config.n_routed_experts}, at::kFloat)) {
  weights.skip(prefix + ".gate.bias_vl");  // for image tokens only
  const int64_t routed = config.n_routed_experts;
  experts_ = pack_experts(routed + 1, [&](int64_t e) {
    return take_expert(config, e < routed ? concat(prefix, ".experts.", e) : prefix + ".shared_experts", weights,
                       dtype);
  });
}

at::Tensor MixtureOfExperts::forward(const at::Tensor& x) const {
  const at::Tensor logits = linear(to_float(x), gate_, at::kFloat);
  const ExpertRoutes routes = route_experts(logits, bias_, experts_per_token_, scale_);
  const at::Tensor outputs = run_experts(x, routes.experts, experts_, swiglu_limit_);
  return sum_experts(outputs, routes.weights, x.scalar_type());
}

}  // namespace reprise
