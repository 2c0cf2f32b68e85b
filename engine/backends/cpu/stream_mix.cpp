#include "backends/stream_mix.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "backends/cpu/packed_blocks.h"
#include "backends/cpu/row_ops.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/targets.h"
#include "backends/cpu/vector_math.h"
#include "memory/tensor_source.h"

namespace reprise::cpu {

namespace {

constexpr int64_t kRowBlock = 16;

// logits [S * (S + 2)] -> pre, post, comb of one row.
void mix_row(const float* logits, int64_t streams, int64_t iters, float eps, float* pre, float* post, float* comb) {
  for (int64_t s = 0; s < streams; ++s) pre[s] = sigmoid_f(logits[s]) + eps;
  for (int64_t s = 0; s < streams; ++s) post[s] = 2.0f * sigmoid_f(logits[streams + s]);
  const float* square = logits + 2 * streams;
  float sums[kMaxStreams];
  for (int64_t i = 0; i < streams; ++i) {
    float top = square[i * streams];
    for (int64_t o = 1; o < streams; ++o) top = std::max(top, square[i * streams + o]);
    float total = 0;
    for (int64_t o = 0; o < streams; ++o) total += comb[i * streams + o] = exp_f(square[i * streams + o] - top);
    for (int64_t o = 0; o < streams; ++o) comb[i * streams + o] = comb[i * streams + o] / total + eps;
  }
  const auto divide_by_column_sums = [&] {
    for (int64_t o = 0; o < streams; ++o) sums[o] = 0;
    for (int64_t i = 0; i < streams; ++i) {
      for (int64_t o = 0; o < streams; ++o) sums[o] += comb[i * streams + o];
    }
    for (int64_t i = 0; i < streams; ++i) {
      for (int64_t o = 0; o < streams; ++o) comb[i * streams + o] /= sums[o] + eps;
    }
  };
  divide_by_column_sums();
  for (int64_t iter = 1; iter < iters; ++iter) {
    for (int64_t i = 0; i < streams; ++i) {
      float total = 0;
      for (int64_t o = 0; o < streams; ++o) total += comb[i * streams + o];
      for (int64_t o = 0; o < streams; ++o) comb[i * streams + o] /= total + eps;
    }
    divide_by_column_sums();
  }
}

REPRISE_CLONES void mix_into(const float* weights, int64_t stride, int64_t streams, const float* rows, int64_t hidden,
                             float first, const float* y, float* out) {
  for (int64_t h = 0; h < hidden; ++h) out[h] = y == nullptr ? 0.0f : first * y[h];
  for (int64_t s = 0; s < streams; ++s) {
    const float w = weights[s * stride];
    const float* row = rows + s * hidden;
    for (int64_t h = 0; h < hidden; ++h) out[h] += w * row[h];
  }
}

}  // namespace

StreamMix stream_mix(const at::Tensor& residual, const PackedWeight& fn, const StreamMixParams& params) {
  const int64_t rows = residual.size(0);
  const int64_t streams = residual.size(1);
  const int64_t width = streams * residual.size(2);
  const int64_t outputs = streams * (streams + 2);
  const PackedBlocks blocks(fn);
  const auto options = residual.options().dtype(at::kFloat);
  StreamMix mix{empty_tensor({rows, streams}, options), empty_tensor({rows, streams}, options),
                empty_tensor({rows, streams, streams}, options)};
  float* pre = mix.pre.mutable_data_ptr<float>();
  float* post = mix.post.mutable_data_ptr<float>();
  float* comb = mix.comb.mutable_data_ptr<float>();
  const float* base = params.base.const_data_ptr<float>();
  const float* scale = params.scale.const_data_ptr<float>();
  const auto* x = static_cast<const std::byte*>(residual.const_data_ptr());
  const auto dtype = residual.scalar_type();
  const size_t row_bytes = static_cast<size_t>(width) * residual.element_size();
  const auto path = product_path(at::kFloat);
  const auto eps = static_cast<float>(params.rms_norm_eps);
  at::parallel_for(0, (rows + kRowBlock - 1) / kRowBlock, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kRowBlock;
      const int64_t count = std::min(kRowBlock, rows - first);
      ScratchFrame frame;
      float* wide = frame.take<float>(kRowBlock * width);
      float* logits = frame.take<float>(kRowBlock * outputs);
      for (int64_t r = 0; r < count; ++r)
        load_row(x + static_cast<size_t>(first + r) * row_bytes, dtype, wide + r * width, width);
      blocks.multiply(count, wide, width, logits, outputs, path);
      for (int64_t r = 0; r < count; ++r) {
        float* row = logits + r * outputs;
        const float mean = sum_of_squares(wide + r * width, width) / static_cast<float>(width);
        const float inverse = 1.0f / std::sqrt(mean + eps);
        for (int64_t o = 0; o < outputs; ++o) {
          row[o] = std::fma(row[o] * inverse, scale[o < streams ? 0 : (o < 2 * streams ? 1 : 2)], base[o]);
        }
        const int64_t t = first + r;
        mix_row(row, streams, params.sinkhorn_iters, static_cast<float>(params.hc_eps), pre + t * streams,
                post + t * streams, comb + t * streams * streams);
      }
    }
  });
  return mix;
}

at::Tensor first_stream(const at::Tensor& residual) {
  const int64_t rows = residual.size(0);
  const int64_t streams = residual.size(1);
  at::Tensor pre = empty_tensor({rows, streams}, residual.options().dtype(at::kFloat));
  float* weights = pre.mutable_data_ptr<float>();
  std::fill_n(weights, rows * streams, 0.0f);
  for (int64_t t = 0; t < rows; ++t) weights[t * streams] = 1;
  return pre;
}

at::Tensor collapse_and_norm(const at::Tensor& residual, const at::Tensor& pre, const at::Tensor& weight, double eps) {
  const int64_t rows = residual.size(0);
  const int64_t streams = residual.size(1);
  const int64_t hidden = residual.size(2);
  at::Tensor x = empty_tensor({rows, hidden}, residual.options());
  const auto dtype = residual.scalar_type();
  const size_t size = residual.element_size();
  const auto* in = static_cast<const std::byte*>(residual.const_data_ptr());
  auto* out = static_cast<std::byte*>(x.mutable_data_ptr());
  const float* weights = pre.const_data_ptr<float>();
  const float* w = weight.const_data_ptr<float>();
  at::parallel_for(0, rows, 4, [&](int64_t begin, int64_t end) {
    ScratchFrame frame;
    float* wide = frame.take<float>(streams * hidden);
    float* sum = frame.take<float>(hidden);
    for (int64_t t = begin; t < end; ++t) {
      load_row(in + static_cast<size_t>(t * streams * hidden) * size, dtype, wide, streams * hidden);
      mix_into(weights + t * streams, 1, streams, wide, hidden, 0, nullptr, sum);
      std::byte* target = out + static_cast<size_t>(t * hidden) * size;
      // The layer input is rounded to the model dtype before its norm.
      store_row(sum, target, dtype, hidden);
      load_row(target, dtype, sum, hidden);
      rms_norm(sum, w, static_cast<float>(eps), sum, hidden);
      store_row(sum, target, dtype, hidden);
    }
  });
  return x;
}

void expand_streams(const at::Tensor& y, const StreamMix& mix, const at::Tensor& residual) {
  const int64_t rows = residual.size(0);
  const int64_t streams = residual.size(1);
  const int64_t hidden = residual.size(2);
  const auto dtype = residual.scalar_type();
  const size_t size = residual.element_size();
  const auto y_dtype = y.scalar_type();
  const size_t y_size = y.element_size();
  auto* x = static_cast<std::byte*>(residual.mutable_data_ptr());
  const auto* in = static_cast<const std::byte*>(y.const_data_ptr());
  const float* post = mix.post.const_data_ptr<float>();
  const float* comb = mix.comb.const_data_ptr<float>();
  at::parallel_for(0, rows, 4, [&](int64_t begin, int64_t end) {
    ScratchFrame frame;
    float* wide = frame.take<float>(streams * hidden);
    float* layer = frame.take<float>(hidden);
    float* out = frame.take<float>(hidden);
    for (int64_t t = begin; t < end; ++t) {
      std::byte* target = x + static_cast<size_t>(t * streams * hidden) * size;
      load_row(target, dtype, wide, streams * hidden);
      load_row(in + static_cast<size_t>(t * hidden) * y_size, y_dtype, layer, hidden);
      for (int64_t o = 0; o < streams; ++o) {
        mix_into(comb + t * streams * streams + o, streams, streams, wide, hidden, post[t * streams + o], layer, out);
        store_row(out, target + static_cast<size_t>(o * hidden) * size, dtype, hidden);
      }
    }
  });
}

}  // namespace reprise::cpu
