#include "backends/experts.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "backends/cpu/clones.h"
#include "backends/cpu/row_ops.h"
#include "backends/cpu/vector_math.h"
#include "memory/tensor_source.h"
#include "reprise/error.h"

namespace reprise {

namespace {

// Rows that one expert takes at a time.
constexpr int64_t kRowBlock = 128;

REPRISE_CLONES void score_row(const float* logits, float* scores, int64_t n) {
  for (int64_t e = 0; e < n; ++e) scores[e] = std::sqrt(softplus_f(logits[e]));
}

// A run of (row, expert) pairs of one expert.
struct ExpertBlock {
  int64_t expert = 0;  // the number of routed experts = the shared one
  int64_t first = 0;   // in `pairs`, or the first row for the shared expert
  int64_t count = 0;
};

// Rows grouped by expert: pair p = t * k + j is the j-th expert of row t. In the calling thread's scratch memory.
struct Grouping {
  const int64_t* pairs = nullptr;
  const ExpertBlock* blocks = nullptr;
  int64_t num_blocks = 0;
};

Grouping group_by_expert(const at::Tensor& experts, int64_t num_experts) {
  const int32_t* ids = experts.const_data_ptr<int32_t>();
  const int64_t count = experts.numel();
  int64_t* starts = cpu::Scratch::get<int64_t>(8, num_experts + 1);
  std::fill_n(starts, num_experts + 1, 0);
  for (int64_t p = 0; p < count; ++p) ++starts[ids[p] + 1];
  std::partial_sum(starts, starts + num_experts + 1, starts);
  // Each expert's last block may be a part of one.
  const int64_t most_blocks = num_experts + count / kRowBlock + experts.size(0) / kRowBlock + 1;
  auto* blocks = cpu::Scratch::get<ExpertBlock>(9, most_blocks);
  int64_t num_blocks = 0;
  const auto add_blocks = [&](int64_t expert, int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kRowBlock) {
      blocks[num_blocks++] = {expert, first, std::min(kRowBlock, end - first)};
    }
  };
  for (int64_t e = 0; e < num_experts; ++e) add_blocks(e, starts[e], starts[e + 1]);
  add_blocks(num_experts, 0, experts.size(0));
  int64_t* pairs = cpu::Scratch::get<int64_t>(10, count);
  for (int64_t p = 0; p < count; ++p) pairs[starts[ids[p]]++] = p;
  return {pairs, blocks, num_blocks};
}

}  // namespace

ExpertRoutes route_experts(const at::Tensor& logits, const at::Tensor& bias, int64_t k, double scale) {
  const int64_t rows = logits.size(0);
  const int64_t num_experts = logits.size(1);
  ExpertRoutes routes{empty_tensor({rows, k}, logits.options().dtype(at::kInt)),
                      empty_tensor({rows, k}, logits.options())};
  const float* in = logits.const_data_ptr<float>();
  const float* b = bias.const_data_ptr<float>();
  int32_t* ids = routes.experts.mutable_data_ptr<int32_t>();
  float* weights = routes.weights.mutable_data_ptr<float>();
  at::parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
    float* scores = cpu::Scratch::get<float>(0, num_experts);
    int32_t* order = cpu::Scratch::get<int32_t>(1, num_experts);
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
      for (int64_t j = 0; j < k; ++j) {
        ids[t * k + j] = order[j];
        weights[t * k + j] = scores[order[j]] / (total + 1e-20f) * static_cast<float>(scale);
      }
    }
  });
  return routes;
}

at::Tensor mixture_of_experts(const at::Tensor& x, const ExpertRoutes& routes, const std::vector<GatedWeights>& experts,
                              const GatedWeights& shared, double swiglu_limit) {
  const int64_t rows = x.size(0);
  const int64_t hidden = x.size(1);
  const int64_t k = routes.experts.size(1);
  REPRISE_ENSURE(x.is_contiguous(), "mixture_of_experts takes dense rows");
  const auto num_experts = static_cast<int64_t>(experts.size());
  const auto grouping = group_by_expert(routes.experts, num_experts);
  const auto dtype = x.scalar_type();
  const size_t size = x.element_size();
  const auto path = cpu::product_path(dtype);
  const auto limit = static_cast<float>(swiglu_limit);
  // Each pair's output, then the shared expert's, float32.
  at::Tensor outputs = empty_tensor({rows * (k + 1), hidden}, x.options().dtype(at::kFloat));
  at::Tensor y = empty_tensor({rows, hidden}, x.options());
  const auto* in = static_cast<const std::byte*>(x.const_data_ptr());
  float* out = outputs.mutable_data_ptr<float>();
  const float* weights = routes.weights.const_data_ptr<float>();

  cpu::parallel_products(dtype, grouping.num_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const ExpertBlock& block = grouping.blocks[i];
      const bool is_shared = block.expert == num_experts;
      const GatedWeights& w = is_shared ? shared : experts[static_cast<size_t>(block.expert)];
      const int64_t inner = w.w1.out_features();
      const int64_t* pairs = grouping.pairs + block.first;
      const std::byte* a = in + static_cast<size_t>(block.first * hidden) * size;
      if (!is_shared) {
        auto* gathered = cpu::Scratch::get<std::byte>(0, static_cast<int64_t>(size) * block.count * hidden);
        const size_t row_bytes = static_cast<size_t>(hidden) * size;
        for (int64_t r = 0; r < block.count; ++r) {
          std::memcpy(gathered + static_cast<size_t>(r) * row_bytes, in + static_cast<size_t>(pairs[r] / k) * row_bytes,
                      row_bytes);
        }
        a = gathered;
      }
      float* gate = cpu::Scratch::get<float>(1, block.count * inner);
      float* up = cpu::Scratch::get<float>(2, block.count * inner);
      cpu::packed_product(w.w1, block.count, a, hidden, gate, inner, path);
      cpu::packed_product(w.w3, block.count, a, hidden, up, inner, path);
      cpu::clamped_swiglu(gate, up, limit, gate, block.count * inner);
      auto* h = cpu::Scratch::get<std::byte>(3, static_cast<int64_t>(size) * block.count * inner);
      cpu::store_row(gate, h, dtype, block.count * inner);
      if (is_shared) {
        cpu::packed_product(w.w2, block.count, h, inner, out + (rows * k + block.first) * hidden, hidden, path);
        continue;
      }
      float* result = cpu::Scratch::get<float>(4, block.count * hidden);
      cpu::packed_product(w.w2, block.count, h, inner, result, hidden, path);
      for (int64_t r = 0; r < block.count; ++r)
        cpu::scale(weights[pairs[r]], result + r * hidden, out + pairs[r] * hidden, hidden);
    }
  });

  auto* target = static_cast<std::byte*>(y.mutable_data_ptr());
  at::parallel_for(0, rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* sum = out + (rows * k + t) * hidden;
      for (int64_t j = 0; j < k; ++j) cpu::add_scaled(1.0f, out + (t * k + j) * hidden, sum, hidden);
      cpu::store_row(sum, target + static_cast<size_t>(t * hidden) * size, dtype, hidden);
    }
  });
  return y;
}

}  // namespace reprise
