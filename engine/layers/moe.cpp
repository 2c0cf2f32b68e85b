#include "layers/moe.h"

#include "backends/norm.h"
#include "layers/take_linear.h"
#include "reprise/error.h"

namespace reprise {

namespace {

GatedWeights take_expert(const ModelConfig& config, const std::string& prefix, WeightSource& weights,
                         at::ScalarType dtype) {
  const int64_t inner = config.moe_intermediate_size;
  return {.w1 = take_linear(weights, prefix + ".w1.weight", inner, config.hidden_size, dtype),
          .w2 = take_linear(weights, prefix + ".w2.weight", config.hidden_size, inner, dtype),
          .w3 = take_linear(weights, prefix + ".w3.weight", inner, config.hidden_size, dtype)};
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
  for (int64_t e = 0; e < config.n_routed_experts; ++e) {
    experts_.push_back(take_expert(config, concat(prefix, ".experts.", e), weights, dtype));
  }
  shared_ = take_expert(config, prefix + ".shared_experts", weights, dtype);
}

at::Tensor MixtureOfExperts::forward(const at::Tensor& x) const {
  const at::Tensor logits = linear(to_float(x), gate_, at::kFloat);
  return mixture_of_experts(x, route_experts(logits, bias_, experts_per_token_, scale_), experts_, shared_,
                            swiglu_limit_);
}

}  // namespace reprise
