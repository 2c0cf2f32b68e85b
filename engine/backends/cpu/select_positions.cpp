#include "backends/select_positions.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>

#include "backends/cpu/block_product.h"
#include "backends/cpu/row_ops.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/targets.h"

namespace reprise::cpu {

namespace {

// Positions scored by one product.
constexpr int64_t kScoreBlock = 128;

// scores[c] = sum_h w[h] relu(dots[c, h]), heads in 16 lanes added in one fixed order.
REPRISE_CLONES void weigh_heads(const float* dots, const float* w, int64_t count, int64_t heads, float* scores) {
  constexpr int kLanes = 16;
  for (int64_t c = 0; c < count; ++c) {
    const float* row = dots + c * heads;
    float lanes[kLanes] = {};
    int64_t h = 0;
    for (; h + kLanes <= heads; h += kLanes) {
      for (int j = 0; j < kLanes; ++j) lanes[j] += w[h + j] * (row[h + j] < 0 ? 0.0f : row[h + j]);
    }
    for (int j = 0; h + j < heads; ++j) lanes[j] += w[h + j] * (row[h + j] < 0 ? 0.0f : row[h + j]);
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
    }
    // NaN has no order, and choosing the best wants one. It counts as the best, so that a key which nobody wrote shows
    // in the output.
    scores[c] = lanes[0] == lanes[0] ? lanes[0] : std::numeric_limits<float>::infinity();
  }
}

// Scores as integers of the same order; zeros of both signs are equal.
REPRISE_CLONES void order_keys(const float* scores, int64_t count, uint32_t* keys) {
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<uint32_t>(scores[i] + 0.0f);
    keys[i] = bits ^ (-(bits >> 31) | 0x80000000u);
  }
}

REPRISE_CLONES int64_t count_at_least(const uint32_t* keys, int64_t count, uint32_t threshold) {
  uint32_t total = 0;
  for (int64_t i = 0; i < count; ++i) total += keys[i] >= threshold ? 1u : 0u;
  return total;
}

// The `keep` best of `count` scores as ascending indices; equal scores: the lower index. `keys`, `order`: scratch
// [count]. The worst kept score is found bit by bit: 32 vectorised counts beat any partial sort.
void keep_best(const float* scores, int64_t count, int64_t keep, uint32_t* keys, int32_t* order) {
  if (count <= keep) {
    std::iota(order, order + count, 0);
    return;
  }
  order_keys(scores, count, keys);
  uint32_t worst = 0;
  for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
    if (count_at_least(keys, count, worst | bit) >= keep) worst |= bit;
  }
  int64_t ties = keep - count_at_least(keys, count, worst + 1);  // no key is the largest integer, which would be a NaN
  int64_t kept = 0;
  for (int64_t i = 0; kept < keep; ++i) {
    const bool is_tie = keys[i] == worst && ties > 0;
    ties -= is_tie ? 1 : 0;
    order[kept] = static_cast<int32_t>(i);
    kept += keys[i] > worst || is_tie ? 1 : 0;
  }
}

void write_row(const int32_t* kept, int64_t count, int64_t width, int32_t* out) {
  std::copy(kept, kept + count, out);
  std::fill(out + count, out + width, -1);
}

template <typename T>
class SelectKernel {
 public:
  SelectKernel(const at::Tensor& q, const at::Tensor& w, const AttentionMetadata& rows, const IndexerParams& params,
               const Selection& selection)
      : p_(params),
        rows_(rows),
        q_(q.const_data_ptr<T>()),
        w_(w.const_data_ptr<float>()),
        selection_(selection.positions.mutable_data_ptr<int32_t>()),
        topk_(selection.positions.size(1)),
        candidates_(selection.candidates.defined() ? selection.candidates.mutable_data_ptr<int32_t>() : nullptr),
        max_blocks_(selection.candidates.defined() ? selection.candidates.size(1) : 0),
        // Sized by what the block table can hold, so that scratch does not grow as a request does.
        capacity_(params.keys.group.block_table.size(1) * params.keys.cells_per_page),
        path_(product_path(q.scalar_type())) {}

  void row(int64_t t) const {
    const int32_t sequence = rows_.sequence_index.const_data_ptr<int32_t>()[t];
    const int64_t visible = sequence < 0 ? 0 : (rows_.positions.const_data_ptr<int64_t>()[t] + 1) / p_.ratio;
    ScratchFrame frame;
    int32_t* positions = frame.take<int32_t>(capacity_);
    const int64_t count = list_positions(t, visible, positions);
    const int64_t blocks =
        p_.candidate_block_size > 0 ? (visible + p_.candidate_block_size - 1) / p_.candidate_block_size : 0;
    const bool choose_positions = count > topk_;
    const bool choose_blocks = candidates_ != nullptr && blocks > max_blocks_;
    float* scores = frame.take<float>(capacity_);
    if (choose_positions || choose_blocks) {
      score(t, rows_.state_slots.const_data_ptr<int32_t>()[sequence], positions, count, scores);
    }
    int32_t* order = frame.take<int32_t>(capacity_);
    const int64_t kept = std::min(count, topk_);
    uint32_t* keys = frame.take<uint32_t>(capacity_);
    keep_best(scores, count, topk_, keys, order);
    for (int64_t i = 0; i < kept; ++i) order[i] = positions[order[i]];
    write_row(order, kept, topk_, selection_ + t * topk_);
    if (candidates_ == nullptr) return;

    float* best = frame.take<float>(capacity_);
    if (choose_blocks) {
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t first = b * p_.candidate_block_size;
        best[b] = *std::max_element(scores + first, scores + std::min(first + p_.candidate_block_size, visible));
      }
      best[blocks - 1] = std::numeric_limits<float>::infinity();
    }
    keep_best(best, blocks, max_blocks_, keys, order);
    write_row(order, std::min(blocks, max_blocks_), max_blocks_, candidates_ + t * max_blocks_);
  }

 private:
  int64_t list_positions(int64_t t, int64_t visible, int32_t* positions) const {
    if (!p_.candidates_in.defined()) {
      std::iota(positions, positions + visible, 0);
      return visible;
    }
    const int64_t width = p_.candidates_in.size(1);
    const int32_t* blocks = p_.candidates_in.const_data_ptr<int32_t>() + t * width;
    int64_t count = 0;
    for (int64_t b = 0; b < width && blocks[b] >= 0; ++b) {
      const int64_t first = blocks[b] * p_.candidate_block_size;
      const int64_t last = std::min(first + p_.candidate_block_size, visible);
      for (int64_t c = first; c < last; ++c) positions[count++] = static_cast<int32_t>(c);
    }
    return count;
  }

  void score(int64_t t, int32_t slot, const int32_t* positions, int64_t count, float* scores) const {
    const int64_t heads = p_.num_heads;
    const int64_t dim = p_.head_dim;
    const int32_t* table =
        p_.keys.group.block_table.const_data_ptr<int32_t>() + slot * p_.keys.group.block_table.size(1);
    const T* cells = p_.keys.cells.const_data_ptr<T>();
    ScratchFrame frame;
    T* query = frame.take<T>(heads * dim);
    operand(q_ + t * heads * dim, query);
    T* keys = frame.take<T>(kScoreBlock * dim);
    float* dots = frame.take<float>(kScoreBlock * heads);
    float* weights = frame.take<float>(heads);
    scale(p_.head_scale, w_ + t * heads, weights, heads);
    for (int64_t first = 0; first < count; first += kScoreBlock) {
      const int64_t size = std::min(kScoreBlock, count - first);
      for (int64_t i = 0; i < size; ++i) {
        const int64_t c = positions[first + i];
        const int64_t cell = table[c / p_.keys.cells_per_page] * p_.keys.cells_per_page + c % p_.keys.cells_per_page;
        std::memcpy(keys + i * dim, cells + cell * dim, static_cast<size_t>(dim) * sizeof(T));
      }
      block_product(path_, size, heads, dim, keys, dim, query, heads, dots, heads);
      weigh_heads(dots, weights, size, heads, scores + first);
    }
  }

  // q^T [d_idx, n_idx] in the product's layout.
  void operand(const T* q, T* out) const {
    for (int64_t h = 0; h < p_.num_heads; ++h) {
      for (int64_t d = 0; d < p_.head_dim; ++d) {
        const int64_t at = sizeof(T) == 2 ? (d / 2 * p_.num_heads + h) * 2 + d % 2 : d * p_.num_heads + h;
        out[at] = q[h * p_.head_dim + d];
      }
    }
  }

  const IndexerParams& p_;
  const AttentionMetadata& rows_;
  const T* q_;
  const float* w_;
  int32_t* selection_;
  int64_t topk_;
  int32_t* candidates_;
  int64_t max_blocks_;
  int64_t capacity_;
  ProductPath path_;
};

template <typename T>
void select(const at::Tensor& q, const at::Tensor& w, const AttentionMetadata& rows, const IndexerParams& params,
            const Selection& selection) {
  const SelectKernel<T> kernel(q, w, rows, params, selection);
  parallel_products(q.scalar_type(), q.size(0), 4, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) kernel.row(t);
  });
}

}  // namespace

void select_compressed(const at::Tensor& q, const at::Tensor& w, const AttentionMetadata& rows,
                       const IndexerParams& params, const Selection& selection) {
  if (q.scalar_type() == at::kFloat) {
    select<float>(q, w, rows, params, selection);
  } else {
    select<c10::BFloat16>(q, w, rows, params, selection);
  }
}

}  // namespace reprise::cpu
