#include "backends/compress_groups.h"

#include <ATen/Parallel.h>

#include <cstring>

#include "backends/cpu/row_ops.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/targets.h"
#include "backends/cpu/vector_math.h"

namespace reprise::cpu {

namespace {

// gates and values: `ratio` rows of n channels each.
REPRISE_CLONES void weigh_group(const float* const* values, const float* const* gates, int64_t ratio, float* tops,
                                float* sums, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) tops[i] = gates[0][i];
  for (int64_t j = 1; j < ratio; ++j) {
    for (int64_t i = 0; i < n; ++i) tops[i] = gates[j][i] > tops[i] ? gates[j][i] : tops[i];
  }
  for (int64_t i = 0; i < n; ++i) out[i] = sums[i] = 0;
  for (int64_t j = 0; j < ratio; ++j) {
    for (int64_t i = 0; i < n; ++i) {
      const float e = exp_f(gates[j][i] - tops[i]);
      sums[i] += e;
      out[i] += e * values[j][i];
    }
  }
  for (int64_t i = 0; i < n; ++i) out[i] /= sums[i];
}

}  // namespace

void compress_groups(const at::Tensor& v, const at::Tensor& g, const AttentionMetadata& rows, const at::Tensor& partial,
                     const at::Tensor& out) {
  const int64_t ratio = partial.size(1);
  const int64_t n = v.size(1);
  const int64_t* position = rows.positions.const_data_ptr<int64_t>();
  const int32_t* sequence = rows.sequence_index.const_data_ptr<int32_t>();
  const int64_t* starts = rows.sequence_starts.const_data_ptr<int64_t>();
  const int32_t* slots = rows.state_slots.const_data_ptr<int32_t>();
  const float* values = v.const_data_ptr<float>();
  const float* gates = g.const_data_ptr<float>();
  float* state = partial.mutable_data_ptr<float>();
  float* target = out.mutable_data_ptr<float>();
  const auto cell = [&](int32_t s, int64_t p) { return state + ((slots[s] * ratio + p % ratio) * 2) * n; };

  at::parallel_for(0, v.size(0), 8, [&](int64_t begin, int64_t end) {
    ScratchFrame frame;
    const float** group = frame.take<const float*>(2 * ratio);
    float* work = frame.take<float>(2 * n);
    for (int64_t t = begin; t < end; ++t) {
      const int32_t s = sequence[t];
      if (s < 0 || (position[t] + 1) % ratio != 0) continue;
      for (int64_t j = 0; j < ratio; ++j) {
        const int64_t row = t - ratio + 1 + j;
        if (row >= starts[s]) {
          group[j] = values + row * n;
          group[ratio + j] = gates + row * n;
        } else {
          group[j] = cell(s, position[t] - ratio + 1 + j);
          group[ratio + j] = group[j] + n;
        }
      }
      weigh_group(group, group + ratio, ratio, work, work + n, target + t * n, n);
    }
  });
  // Only now: the groups above may have read what stood in these cells.
  for (int64_t s = 0; s < rows.state_slots.size(0); ++s) {
    for (int64_t t = starts[s + 1] - 1; t >= starts[s] && (position[t] + 1) % ratio != 0; --t) {
      float* place = cell(static_cast<int32_t>(s), position[t]);
      std::memcpy(place, values + t * n, static_cast<size_t>(n) * sizeof(float));
      std::memcpy(place + n, gates + t * n, static_cast<size_t>(n) * sizeof(float));
    }
  }
}

}  // namespace reprise::cpu
