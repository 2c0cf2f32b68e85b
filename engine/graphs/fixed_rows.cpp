#include "graphs/fixed_rows.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "backends/rows.h"
#include "reprise/error.h"

namespace reprise {

namespace {

RopeRows make_fixed_rope(const RopeRows& rope, int64_t num_rows) {
  if (!rope.cos.defined()) return {};
  return {make_fixed_rows(rope.cos, num_rows), make_fixed_rows(rope.sin, num_rows)};
}

void set_rope(const RopeRows& fixed, const RopeRows& rope) {
  if (!fixed.cos.defined()) return;
  set_first_rows(fixed.cos, rope.cos);
  set_first_rows(fixed.sin, rope.sin);
}

void set_padded(const at::Tensor& fixed, const at::Tensor& rows, int64_t value = 0) {
  set_first_rows(fixed, rows);
  pad_rows(fixed, rows.size(0), value);
}

}  // namespace

at::Tensor make_fixed_rows(const at::Tensor& rows, int64_t num_rows) {
  at::DimVector sizes(rows.sizes());
  sizes[0] = num_rows;
  return at::zeros(sizes, rows.options());
}

void set_first_rows(const at::Tensor& fixed, const at::Tensor& rows) {
  REPRISE_ENSURE(rows.size(0) <= fixed.size(0) && rows.sizes().slice(1) == fixed.sizes().slice(1) &&
                     rows.scalar_type() == fixed.scalar_type(),
                 "rows of shape ", rows.sizes(), " do not fit buffers of ", fixed.sizes());
  if (!fixed.is_cpu() || !rows.is_contiguous()) {
    fixed.narrow(0, 0, rows.size(0)).copy_(rows, /*non_blocking=*/true);
  } else if (rows.nbytes() > 0) {
    std::memcpy(fixed.mutable_data_ptr(), rows.const_data_ptr(), rows.nbytes());
  }
}

void set_first_rows(const at::Tensor& fixed, const at::Tensor& rows, const at::Tensor& index) {
  if (fixed.is_cpu()) {
    gather_rows_out(rows, index, fixed);
  } else {
    set_first_rows(fixed, rows.index_select(0, index));
  }
}

void pad_rows(const at::Tensor& fixed, int64_t num_rows, int64_t value) {
  const int64_t size = fixed.size(0);
  if (num_rows >= size) return;
  if (!fixed.is_cpu()) {
    fixed.narrow(0, num_rows, size - num_rows).fill_(value);
  } else if (fixed.scalar_type() == at::kInt && fixed.dim() == 1) {
    std::fill(fixed.mutable_data_ptr<int32_t>() + num_rows, fixed.mutable_data_ptr<int32_t>() + size,
              static_cast<int32_t>(value));
  } else if (fixed.scalar_type() == at::kLong && fixed.dim() == 1) {
    std::fill(fixed.mutable_data_ptr<int64_t>() + num_rows, fixed.mutable_data_ptr<int64_t>() + size, value);
  } else {
    const size_t row_bytes = fixed.nbytes() / static_cast<size_t>(size);
    auto* first = static_cast<std::byte*>(fixed.mutable_data_ptr()) + static_cast<size_t>(num_rows) * row_bytes;
    std::memset(first, 0, static_cast<size_t>(size - num_rows) * row_bytes);
  }
}

FixedContext::FixedContext(const ForwardContext& like, int64_t num_rows, int64_t max_num_seqs, bool publishes)
    : context_(std::make_shared<ForwardContext>()) {
  context_->num_rows = num_rows;
  context_->num_padding_rows = num_rows;
  const AttentionMetadata& from = like.attention;
  AttentionMetadata& fixed = context_->attention;
  fixed.positions = make_fixed_rows(from.positions, num_rows);
  fixed.sequence_index = make_fixed_rows(from.sequence_index, num_rows);
  fixed.sequence_starts = make_fixed_rows(from.sequence_starts, max_num_seqs + 1);
  fixed.state_slots = make_fixed_rows(from.state_slots, max_num_seqs);
  fixed.window_starts = make_fixed_rows(from.window_starts, num_rows);
  fixed.window_slots = make_fixed_rows(from.window_slots, num_rows);
  fixed.window_block_table = from.window_block_table;
  fixed.compressed_block_table = from.compressed_block_table;
  if (publishes) {
    for (const PublishedRows& rows : from.published) {
      fixed.published.push_back(
          {rows.ratio, make_fixed_rows(rows.slots, num_rows), make_fixed_rope(rows.rope, num_rows)});
    }
  }
  fixed.window_rope = make_fixed_rope(from.window_rope, num_rows);
  fixed.compressed_rope = make_fixed_rope(from.compressed_rope, num_rows);
  pad_rows(fixed.sequence_index, 0, -1);
}

void FixedContext::set(const ForwardContext& step) {
  const AttentionMetadata& from = step.attention;
  AttentionMetadata& fixed = context_->attention;
  REPRISE_ENSURE(
      from.window_block_table.is_same(fixed.window_block_table) && from.published.size() >= fixed.published.size(),
      "a step of another model state");
  context_->num_padding_rows = context_->num_rows - step.num_rows;
  context_->is_replay = step.is_replay;
  set_padded(fixed.positions, from.positions);
  set_padded(fixed.sequence_index, from.sequence_index, -1);
  // Sequences behind the last have no rows.
  set_padded(fixed.sequence_starts, from.sequence_starts, step.num_rows);
  set_padded(fixed.state_slots, from.state_slots);
  set_padded(fixed.window_starts, from.window_starts);
  set_padded(fixed.window_slots, from.window_slots);
  for (size_t i = 0; i < fixed.published.size(); ++i) {
    set_padded(fixed.published[i].slots, from.published[i].slots);
    set_rope(fixed.published[i].rope, from.published[i].rope);
  }
  set_rope(fixed.window_rope, from.window_rope);
  set_rope(fixed.compressed_rope, from.compressed_rope);
}

}  // namespace reprise
