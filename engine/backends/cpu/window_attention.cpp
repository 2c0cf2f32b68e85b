#include "backends/window_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/cpu/block_product.h"
#include "backends/cpu/row_ops.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/targets.h"
#include "backends/cpu/vector_math.h"
#include "memory/tensor_source.h"

namespace reprise::cpu {

namespace {

// Key counts are rounded up to it with zero keys of probability zero; how many keys a row has is the row's own fact.
constexpr int64_t kKeyBlock = 32;

// scores [keys, heads] -> exp(score * scale - max) per head, zero behind `count`; inverse_sums [heads] include the
// sink.
REPRISE_CLONES void softmax_columns(float* scores, int64_t count, int64_t padded, int64_t heads, float scale,
                                    const float* sink, float* tops, float* inverse_sums) {
  for (int64_t h = 0; h < heads; ++h) tops[h] = sink[h];
  for (int64_t k = 0; k < count; ++k) {
    float* row = scores + k * heads;
    for (int64_t h = 0; h < heads; ++h) {
      row[h] *= scale;
      tops[h] = row[h] > tops[h] ? row[h] : tops[h];
    }
  }
  for (int64_t h = 0; h < heads; ++h) inverse_sums[h] = exp_f(sink[h] - tops[h]);
  for (int64_t k = 0; k < count; ++k) {
    float* row = scores + k * heads;
    for (int64_t h = 0; h < heads; ++h) {
      row[h] = exp_f(row[h] - tops[h]);
      inverse_sums[h] += row[h];
    }
  }
  for (int64_t i = count * heads; i < padded * heads; ++i) scores[i] = 0;
  for (int64_t h = 0; h < heads; ++h) inverse_sums[h] = 1.0f / inverse_sums[h];
}

// Interleaves two rows: out[2 i] = a[i], out[2 i + 1] = b[i].
REPRISE_CLONES void interleave(const uint16_t* a, const uint16_t* b, uint32_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<uint32_t>(a[i]) | (static_cast<uint32_t>(b[i]) << 16);
}

// The pages of the request in a state slot.
const int32_t* pages_of(const at::Tensor& block_table, int32_t slot) {
  return block_table.const_data_ptr<int32_t>() + slot * block_table.size(1);
}

const std::byte* cell_of(const PagedCells& cache, const int32_t* pages, int64_t c, size_t cell_bytes) {
  const int32_t page = pages[c / cache.cells_per_page];
  return static_cast<const std::byte*>(cache.cells.const_data_ptr()) +
         static_cast<size_t>(page * cache.cells_per_page + c % cache.cells_per_page) * cell_bytes;
}

// Tiles keep both sides in the cache: one side's rows lie far apart.
template <typename Value>
void transpose(const Value* in, int64_t rows, int64_t columns, Value* out) {
  constexpr int64_t kTile = 16;
  int64_t first = 0;
  for (; first + kTile <= rows; first += kTile) {
    const Value* tile = in + first * columns;
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t r = 0; r < kTile; ++r) out[c * rows + first + r] = tile[r * columns + c];
    }
  }
  for (int64_t r = first; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) out[c * rows + r] = in[r * columns + c];
  }
}

// The product's right operand q^T [D, heads] in its layout: pairs of bfloat16 channels stay together.

void query_operand(const float* q, int64_t heads, int64_t dim, float* out) { transpose(q, heads, dim, out); }

void query_operand(const float* q, int64_t heads, int64_t dim, c10::BFloat16* out) {
  ScratchFrame frame;
  auto* rounded = frame.take<uint32_t>(heads * dim / 2);
  store_row(q, rounded, at::kBFloat16, heads * dim);
  transpose(rounded, heads, dim / 2, reinterpret_cast<uint32_t*>(out));
}

// The left operand P [heads, keys] from scores [keys, heads].
void weight_operand(const float* scores, int64_t keys, int64_t heads, float* out) {
  transpose(scores, keys, heads, out);
}

void weight_operand(const float* scores, int64_t keys, int64_t heads, c10::BFloat16* out) {
  ScratchFrame frame;
  auto* rounded = frame.take<uint16_t>(keys * heads);
  store_row(scores, rounded, at::kBFloat16, keys * heads);
  transpose(rounded, keys, heads, reinterpret_cast<uint16_t*>(out));
}

const float* value_operand(const float* keys, int64_t, int64_t, ScratchFrame&) { return keys; }

const c10::BFloat16* value_operand(const c10::BFloat16* keys, int64_t count, int64_t dim, ScratchFrame& frame) {
  auto* pairs = frame.take<uint32_t>(count / 2 * dim);
  const auto* rows = reinterpret_cast<const uint16_t*>(keys);
  for (int64_t k = 0; k < count; k += 2) interleave(rows + k * dim, rows + (k + 1) * dim, pairs + k / 2 * dim, dim);
  return reinterpret_cast<const c10::BFloat16*>(pairs);
}

template <typename T>
class AttentionKernel {
 public:
  AttentionKernel(const at::Tensor& q, const AttentionMetadata& rows, const AttentionParams& params, at::Tensor& out)
      : p_(params),
        rows_(rows),
        heads_(params.num_heads),
        dim_(params.head_dim),
        half_(params.rope.cos.size(1)),
        topk_(params.compressed.cells.defined() ? params.selection.size(1) : 0),
        q_(q.const_data_ptr<T>()),
        out_(out.mutable_data_ptr<T>()),
        dtype_(q.scalar_type()),
        path_(product_path(dtype_)) {}

  void row(int64_t t) const {
    const int32_t sequence = rows_.sequence_index.const_data_ptr<int32_t>()[t];
    T* target = out_ + t * heads_ * dim_;
    if (sequence < 0) {
      std::fill(target, target + heads_ * dim_, T(0));
      return;
    }
    const int32_t slot = rows_.state_slots.const_data_ptr<int32_t>()[sequence];
    const int64_t position = rows_.positions.const_data_ptr<int64_t>()[t];
    const int64_t start = p_.window.group.window_starts.const_data_ptr<int64_t>()[t];
    const int32_t* selected = topk_ > 0 ? p_.selection.const_data_ptr<int32_t>() + t * topk_ : nullptr;
    const int64_t num_selected = selected == nullptr ? 0 : std::find(selected, selected + topk_, -1) - selected;
    const int64_t count = position + 1 - start + num_selected;
    const int64_t padded = (count + kKeyBlock - 1) / kKeyBlock * kKeyBlock;

    const int32_t* window_pages = pages_of(p_.window.group.block_table, slot);
    const int32_t* compressed_pages = num_selected > 0 ? pages_of(p_.compressed.group.block_table, slot) : nullptr;
    ScratchFrame frame;
    T* keys = frame.take<T>(padded * dim_);
    const size_t bytes = static_cast<size_t>(dim_) * sizeof(T);
    T* next = keys;
    for (int64_t c = start; c <= position;) {  // the cells of a page lie side by side
      const int64_t run = std::min(position + 1 - c, p_.window.cells_per_page - c % p_.window.cells_per_page);
      std::memcpy(next, cell_of(p_.window, window_pages, c, bytes), static_cast<size_t>(run) * bytes);
      next += run * dim_;
      c += run;
    }
    for (int64_t i = 0; i < num_selected; ++i, next += dim_) {
      std::memcpy(next, cell_of(p_.compressed, compressed_pages, selected[i], bytes), bytes);
    }
    std::fill(next, keys + padded * dim_, T(0));

    const float* cos = p_.rope.cos.const_data_ptr<float>() + t * half_;
    const float* sin = p_.rope.sin.const_data_ptr<float>() + t * half_;
    float* wide = frame.take<float>(heads_ * dim_);
    load_row(q_ + t * heads_ * dim_, dtype_, wide, heads_ * dim_);
    for (int64_t h = 0; h < heads_; ++h) rotate(wide + h * dim_, dim_, cos, sin, half_, false);
    T* query = frame.take<T>(heads_ * dim_);
    query_operand(wide, heads_, dim_, query);

    float* scores = frame.take<float>(padded * heads_);
    block_product(path_, padded, heads_, dim_, keys, dim_, query, heads_, scores, heads_);
    float* tops = frame.take<float>(2 * heads_);
    float* inverse_sums = tops + heads_;
    softmax_columns(scores, count, padded, heads_, 1.0f / std::sqrt(static_cast<float>(dim_)),
                    p_.sink.const_data_ptr<float>(), tops, inverse_sums);
    T* weights = frame.take<T>(heads_ * padded);
    weight_operand(scores, padded, heads_, weights);
    block_product(path_, heads_, dim_, padded, weights, padded, value_operand(keys, padded, dim_, frame), dim_, wide,
                  dim_);
    for (int64_t h = 0; h < heads_; ++h) {
      float* head = wide + h * dim_;
      scale(inverse_sums[h], head, head, dim_);
      rotate(head, dim_, cos, sin, half_, true);
    }
    store_row(wide, target, dtype_, heads_ * dim_);
  }

 private:
  const AttentionParams& p_;
  const AttentionMetadata& rows_;
  int64_t heads_;
  int64_t dim_;
  int64_t half_;
  int64_t topk_;
  const T* q_;
  T* out_;
  at::ScalarType dtype_;
  ProductPath path_;
};

template <typename T>
void attend(const at::Tensor& q, const AttentionMetadata& rows, const AttentionParams& params, at::Tensor& out) {
  const AttentionKernel<T> kernel(q, rows, params, out);
  parallel_products(q.scalar_type(), q.size(0), 4, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) kernel.row(t);
  });
}

}  // namespace

at::Tensor window_sparse_attention(const at::Tensor& q, const AttentionMetadata& rows, const AttentionParams& params) {
  at::Tensor out = empty_tensor(q.sizes(), q.options());
  if (q.scalar_type() == at::kFloat) {
    attend<float>(q, rows, params, out);
  } else {
    attend<c10::BFloat16>(q, rows, params, out);
  }
  return out;
}

}  // namespace reprise::cpu
