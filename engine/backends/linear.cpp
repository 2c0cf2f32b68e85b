#include "backends/linear.h"

#include <ATen/ops/empty.h>

#include "backends/kernels.h"
#include "backends/room.h"
#include "reprise/error.h"

namespace reprise {

PackedWeight::PackedWeight(int64_t count, const at::Tensor& like)
    : room_(&room_of(like)), count_(count), out_(like.size(-2)), in_(like.size(-1)) {
  REPRISE_ENSURE(like.scalar_type() == at::kFloat || like.scalar_type() == at::kBFloat16,
                 "a packed weight is float32 or bfloat16");
  REPRISE_ENSURE(like.scalar_type() == at::kFloat || in_ % 2 == 0, "bfloat16 products want an even inner size, got ",
                 in_);
  values_ = at::empty({count_, out_ * in_}, like.options());
}

PackedWeight::PackedWeight(const at::Tensor& weights)
    : PackedWeight(weights.dim() == 2 ? 1 : weights.size(0), weights) {
  for (int64_t i = 0; i < count_; ++i) pack(i, weights.dim() == 2 ? weights : weights.select(0, i));
}

void PackedWeight::pack(int64_t index, const at::Tensor& weight) const {
  REPRISE_ENSURE(weight.is_contiguous() && weight.scalar_type() == dtype() && weight.dim() == 2 &&
                     weight.size(0) == out_ && weight.size(1) == in_,
                 "a stack holds dense weights of one shape and dtype");
  room_->pack_weight(weight, values_.select(0, index));
}

const at::Tensor& PackedWeight::values(const Kernels& room) const {
  REPRISE_ENSURE(room_ == &room, "a weight is multiplied in the room that packed it");
  return values_;
}

at::Tensor linear(const at::Tensor& x, const PackedWeight& weight, at::ScalarType out_dtype) {
  REPRISE_ENSURE(x.dim() == 2 && x.size(1) == weight.count() * weight.in_features() &&
                     x.scalar_type() == weight.dtype() && x.stride(1) == 1,
                 "linear takes rows of ", weight.count() * weight.in_features(), " dense values in the weight's dtype");
  return room_of(x).linear(x, weight, out_dtype);
}

}  // namespace reprise
