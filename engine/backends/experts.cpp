#include "backends/experts.h"

#include "backends/kernels.h"
#include "backends/room.h"
#include "reprise/error.h"

namespace reprise {

PackedExperts pack_experts(int64_t count, c10::function_ref<GatedWeights(int64_t expert)> lend) {
  REPRISE_ENSURE(count > 0, "a layer has at least one expert");
  PackedExperts packed;
  for (int64_t e = 0; e < count; ++e) {
    const GatedWeights weights = lend(e);
    if (e == 0) {
      packed = {PackedWeight(count, weights.w1), PackedWeight(count, weights.w2), PackedWeight(count, weights.w3)};
    }
    packed.w1.pack(e, weights.w1);
    packed.w2.pack(e, weights.w2);
    packed.w3.pack(e, weights.w3);
  }
  return packed;
}

ExpertRoutes route_experts(const at::Tensor& logits, const at::Tensor& bias, int64_t k, double scale) {
  REPRISE_ENSURE(logits.is_contiguous() && bias.numel() == logits.size(1) && k <= logits.size(1),
                 "route_experts takes dense rows of a logit per expert");
  return room_of(logits).route_experts(logits, bias, k, scale);
}

at::Tensor run_experts(const at::Tensor& x, const at::Tensor& ids, const PackedExperts& experts, double swiglu_limit) {
  REPRISE_ENSURE(x.is_contiguous() && ids.is_contiguous() && ids.size(0) == x.size(0) &&
                     x.size(1) == experts.w1.in_features() && x.scalar_type() == experts.w1.dtype(),
                 "run_experts takes dense rows of ", experts.w1.in_features(), " values in the weights' dtype");
  return room_of(x).run_experts(x, ids, experts, swiglu_limit);
}

at::Tensor sum_experts(const at::Tensor& outputs, const at::Tensor& weights, at::ScalarType dtype) {
  REPRISE_ENSURE(outputs.is_contiguous() && weights.is_contiguous() && outputs.size(0) == weights.numel(),
                 "sum_experts takes a weight for every output");
  return room_of(outputs).sum_experts(outputs, weights, dtype);
}

}  // namespace reprise
