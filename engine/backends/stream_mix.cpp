#include "backends/stream_mix.h"

#include "backends/kernels.h"
#include "backends/room.h"
#include "reprise/error.h"

namespace reprise {

StreamMix stream_mix(const at::Tensor& residual, const PackedWeight& fn, const StreamMixParams& params) {
  const int64_t streams = residual.size(1);
  REPRISE_ENSURE(residual.is_contiguous() && streams <= kMaxStreams && fn.dtype() == at::kFloat &&
                     fn.in_features() == streams * residual.size(2) && fn.out_features() == streams * (streams + 2),
                 "mix weights do not fit the residual");
  return room_of(residual).stream_mix(residual, fn, params);
}

at::Tensor first_stream(const at::Tensor& residual) { return room_of(residual).first_stream(residual); }

at::Tensor collapse_and_norm(const at::Tensor& residual, const at::Tensor& pre, const at::Tensor& weight, double eps) {
  REPRISE_ENSURE(residual.is_contiguous() && pre.is_contiguous() && pre.size(0) == residual.size(0) &&
                     weight.numel() == residual.size(2),
                 "collapse_and_norm takes dense rows and a weight for each of their streams");
  return room_of(residual).collapse_and_norm(residual, pre, weight, eps);
}

void expand_streams(const at::Tensor& y, const StreamMix& mix, const at::Tensor& residual) {
  REPRISE_ENSURE(y.size(0) == residual.size(0) && y.size(1) == residual.size(2),
                 "a layer output has one row per residual row");
  room_of(residual).expand_streams(y, mix, residual);
}

}  // namespace reprise
