#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "backends/linear.h"

namespace reprise {

inline constexpr int64_t kMaxStreams = 16;  // S of the products below: rooms may keep a row's sums on the stack

// The mixes of one hyper-connection for T rows and S streams, all float32.
struct StreamMix {
  at::Tensor pre;   // [T, S] weights that collapse the streams to a layer input
  at::Tensor post;  // [T, S] weights of the layer output in each stream
  at::Tensor comb;  // [T, S, S] stream-to-stream mix, [in, out]
};

struct StreamMixParams {
  at::Tensor base;   // float32 [S * (S + 2)]
  at::Tensor scale;  // float32 [3]
  int64_t sinkhorn_iters = 0;
  double hc_eps = 0;
  double rms_norm_eps = 0;
};

// residual [T, S, H], fn float32 [S * (S + 2), S * H]; arithmetic in float32.
StreamMix stream_mix(const at::Tensor& residual, const PackedWeight& fn, const StreamMixParams& params);

// The `pre` of a residual whose streams are still equal, float32 [T, S]: all of stream 0.
at::Tensor first_stream(const at::Tensor& residual);

// x = rmsnorm(cast(sum_s pre[t, s] residual[t, s, :])) [T, H] in the residual's dtype; `weight` float32 [H].
at::Tensor collapse_and_norm(const at::Tensor& residual, const at::Tensor& pre, const at::Tensor& weight, double eps);

// residual[t, o, :] = post[t, o] y[t, :] + sum_i comb[t, i, o] residual[t, i, :], in place; y [T, H] float32 or the
// residual's dtype.
void expand_streams(const at::Tensor& y, const StreamMix& mix, const at::Tensor& residual);

}  // namespace reprise
