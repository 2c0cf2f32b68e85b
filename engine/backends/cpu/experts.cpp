#include "backends/experts.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "backends/cpu/packed_blocks.h"
#include "backends/cpu/row_ops.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/targets.h"
#include "backends/cpu/vector_math.h"
#include "memory/tensor_source.h"

namespace reprise::cpu {

namespace {

// Rows that one expert takes at a time.
constexpr int64_t kRowBlock = 128;

REPRISE_CLONES void score_row(const float* logits, float* scores, int64_t n) {
  for (int64_t e = 0; e < n; ++e) scores[e] = std::sqrt(softplus_f(logits[e]));
}

// Pairs of one expert: pair p = t * n + j is the j-th expert of row t.
struct ExpertBlock {
  int64_t expert = 0;
  const int64_t* pairs = nullptr;  // ascending
  int64_t count = 0;

  // Whether pairs[i] = pairs[0] + i * step.
  bool has_step(int64_t step) const {
    for (int64_t i = 1; i < count; ++i) {
      if (pairs[i] != pairs[0] + i * step) return false;
    }
    return true;
  }
};

// All pairs, grouped by expert in blocks of rows. In a frame's memory.
struct Grouping {
  const ExpertBlock* blocks = nullptr;
  int64_t num_blocks = 0;
};

Grouping group_by_expert(const at::Tensor& ids_of_rows, int64_t num_experts, ScratchFrame& frame) {
  const int32_t* ids = ids_of_rows.const_data_ptr<int32_t>();
  const int64_t count = ids_of_rows.numel();
  int64_t* starts = frame.take<int64_t>(num_experts + 1);
  std::fill_n(starts, num_experts + 1, 0);
  for (int64_t p = 0; p < count; ++p) ++starts[ids[p] + 1];
  std::partial_sum(starts, starts + num_experts + 1, starts);
  // Each expert's last block may be a part of one.
  auto* blocks = frame.take<ExpertBlock>(num_experts + count / kRowBlock);
  int64_t* pairs = frame.take<int64_t>(count);
  int64_t num_blocks = 0;
  for (int64_t e = 0; e < num_experts; ++e) {
    for (int64_t first = starts[e]; first < starts[e + 1]; first += kRowBlock) {
      blocks[num_blocks++] = {e, pairs + first, std::min(kRowBlock, starts[e + 1] - first)};
    }
  }
  for (int64_t p = 0; p < count; ++p) pairs[starts[ids[p]]++] = p;
  return {blocks, num_blocks};
}

}  // namespace

ExpertRoutes route_experts(const at::Tensor& logits, const at::Tensor& bias, int64_t k, double scale) {
  const int64_t rows = logits.size(0);
  const int64_t num_experts = logits.size(1);
  ExpertRoutes routes{empty_tensor({rows, k + 1}, logits.options().dtype(at::kInt)),
                      empty_tensor({rows, k + 1}, logits.options())};
  const float* in = logits.const_data_ptr<float>();
  const float* b = bias.const_data_ptr<float>();
  int32_t* all_ids = routes.experts.mutable_data_ptr<int32_t>();
  float* all_weights = routes.weights.mutable_data_ptr<float>();
  at::parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
    ScratchFrame frame;
    float* scores = frame.take<float>(num_experts);
    int32_t* order = frame.take<int32_t>(num_experts);
    for (int64_t t = begin; t < end; ++t) {
      score_row(in + t * num_experts, scores, num_experts);
      std::iota(order, order + num_experts, 0);
      std::partial_sort(order, order + k, order + num_experts, [&](int32_t x, int32_t y) {
        const float a = scores[x] + b[x];
        const float c = scores[y] + b[y];
        return a > c || (a == c && x < y);
      });
      std::sort(order, order + k);
      float total = 0;
      for (int64_t j = 0; j < k; ++j) total += scores[order[j]];
      int32_t* ids = all_ids + t * (k + 1);
      float* weights = all_weights + t * (k + 1);
      ids[0] = static_cast<int32_t>(num_experts);
      weights[0] = 1;
      for (int64_t j = 0; j < k; ++j) {
        ids[j + 1] = order[j];
        weights[j + 1] = scores[order[j]] / (total + 1e-20f) * static_cast<float>(scale);
      }
    }
  });
  return routes;
}

at::Tensor run_experts(const at::Tensor& x, const at::Tensor& ids, const PackedExperts& experts, double swiglu_limit) {
  const int64_t n = ids.size(1);
  const int64_t hidden = x.size(1);
  const int64_t inner = experts.w1.out_features();
  ScratchFrame callers_frame;
  const auto grouping = group_by_expert(ids, experts.count(), callers_frame);
  const auto dtype = x.scalar_type();
  const size_t row_bytes = static_cast<size_t>(hidden) * x.element_size();
  const auto path = product_path(dtype);
  const auto limit = static_cast<float>(swiglu_limit);
  at::Tensor outputs = empty_tensor({ids.numel(), hidden}, x.options().dtype(at::kFloat));
  const auto* in = static_cast<const std::byte*>(x.const_data_ptr());
  float* out = outputs.mutable_data_ptr<float>();

  parallel_products(dtype, grouping.num_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      ScratchFrame frame;
      const ExpertBlock& block = grouping.blocks[i];
      const int64_t count = block.count;
      // The shared expert's rows are all of them: they lie side by side, and so do their outputs but for a stride.
      const bool takes_every_row = block.has_step(n);
      const std::byte* a = in + static_cast<size_t>(block.pairs[0] / n) * row_bytes;
      if (!takes_every_row) {
        auto* gathered = frame.take<std::byte>(count * static_cast<int64_t>(row_bytes));
        for (int64_t r = 0; r < count; ++r) {
          std::memcpy(gathered + static_cast<size_t>(r) * row_bytes,
                      in + static_cast<size_t>(block.pairs[r] / n) * row_bytes, row_bytes);
        }
        a = gathered;
      }
      float* gate = frame.take<float>(count * inner);
      float* up = frame.take<float>(count * inner);
      PackedBlocks(experts.w1, block.expert).multiply(count, a, hidden, gate, inner, path);
      PackedBlocks(experts.w3, block.expert).multiply(count, a, hidden, up, inner, path);
      clamped_swiglu(gate, up, limit, gate, count * inner);
      auto* h = frame.take<std::byte>(count * inner * static_cast<int64_t>(x.element_size()));
      store_row(gate, h, dtype, count * inner);
      const PackedBlocks w2(experts.w2, block.expert);
      if (takes_every_row) {
        w2.multiply(count, h, inner, out + block.pairs[0] * hidden, n * hidden, path);
        continue;
      }
      float* result = frame.take<float>(count * hidden);
      w2.multiply(count, h, inner, result, hidden, path);
      for (int64_t r = 0; r < count; ++r) std::copy_n(result + r * hidden, hidden, out + block.pairs[r] * hidden);
    }
  });
  return outputs;
}

at::Tensor sum_experts(const at::Tensor& outputs, const at::Tensor& weights, at::ScalarType dtype) {
  const int64_t rows = weights.size(0);
  const int64_t n = weights.size(1);
  const int64_t hidden = outputs.size(1);
  at::Tensor y = empty_tensor({rows, hidden}, outputs.options().dtype(dtype));
  const float* in = outputs.const_data_ptr<float>();
  const float* w = weights.const_data_ptr<float>();
  auto* out = static_cast<std::byte*>(y.mutable_data_ptr());
  const size_t row_bytes = static_cast<size_t>(hidden) * y.element_size();
  at::parallel_for(0, rows, 8, [&](int64_t begin, int64_t end) {
    ScratchFrame frame;
    float* sum = frame.take<float>(hidden);
    for (int64_t t = begin; t < end; ++t) {
      scale(w[t * n], in + t * n * hidden, sum, hidden);
      for (int64_t j = 1; j < n; ++j) add_scaled(w[t * n + j], in + (t * n + j) * hidden, sum, hidden);
      store_row(sum, out + static_cast<size_t>(t) * row_bytes, dtype, hidden);
    }
  });
  return y;
}

}  // namespace reprise::cpu
