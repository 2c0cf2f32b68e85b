#include "graphs/fixed_rows.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "reprise/error.h"

namespace reprise {

namespace {

at::Tensor make_optional_rows(const at::Tensor& rows, int64_t num_rows) {
  return rows.defined() ? make_fixed_rows(rows, num_rows) : at::Tensor();
}

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

void set_first_rows(const at::Tensor& fixed, const at::Tensor& rows, const RowRuns& chosen) {
  const size_t row_bytes = fixed.size(0) == 0 ? 0 : fixed.nbytes() / static_cast<size_t>(fixed.size(0));
  for (const RowRun& run : chosen.runs()) {
    if (!fixed.is_cpu() || !rows.is_contiguous()) {
      fixed.narrow(0, run.to, run.count).copy_(rows.narrow(0, run.from, run.count), /*non_blocking=*/true);
    } else {
      std::memcpy(static_cast<std::byte*>(fixed.mutable_data_ptr()) + static_cast<size_t>(run.to) * row_bytes,
                  static_cast<const std::byte*>(rows.const_data_ptr()) + static_cast<size_t>(run.from) * row_bytes,
                  static_cast<size_t>(run.count) * row_bytes);
    }
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

FixedContext::FixedContext(const ForwardContext& like, int64_t num_rows, int64_t max_num_seqs)
    : context_(std::make_shared<ForwardContext>()) {
  context_->num_rows = num_rows;
  context_->num_padding_rows = num_rows;
  const AttentionMetadata& from = like.attention;
  AttentionMetadata& fixed = context_->attention;
  fixed.positions = make_fixed_rows(from.positions, num_rows);
  fixed.sequence_index = make_fixed_rows(from.sequence_index, num_rows);
  fixed.sequence_starts = make_fixed_rows(from.sequence_starts, max_num_seqs + 1);
  fixed.state_slots = make_fixed_rows(from.state_slots, max_num_seqs);
  for (const GroupRows& group : from.groups)
    fixed.groups.push_back({group.block_table, make_optional_rows(group.window_starts, num_rows)});
  for (const CellRows& cells : from.cells)
    fixed.cells.push_back({make_optional_rows(cells.slots, num_rows), make_fixed_rope(cells.rope, num_rows)});
  for (const RopeRows& rope : from.ropes) fixed.ropes.push_back(make_fixed_rope(rope, num_rows));
  pad_rows(fixed.sequence_index, 0, -1);
}

void FixedContext::set(const ForwardContext& step) {
  const AttentionMetadata& from = step.attention;
  AttentionMetadata& fixed = context_->attention;
  REPRISE_ENSURE(from.groups.size() == fixed.groups.size() && from.cells.size() == fixed.cells.size() &&
                     from.groups[0].block_table.is_same(fixed.groups[0].block_table),
                 "a step of another model state");
  context_->num_padding_rows = context_->num_rows - step.num_rows;
  context_->is_replay = step.is_replay;
  set_padded(fixed.positions, from.positions);
  set_padded(fixed.sequence_index, from.sequence_index, -1);
  // Sequences behind the last have no rows.
  set_padded(fixed.sequence_starts, from.sequence_starts, step.num_rows);
  set_padded(fixed.state_slots, from.state_slots);
  for (size_t i = 0; i < fixed.groups.size(); ++i) {
    if (fixed.groups[i].window_starts.defined())
      set_padded(fixed.groups[i].window_starts, from.groups[i].window_starts);
  }
  for (size_t i = 0; i < fixed.cells.size(); ++i) {
    // Where this step's rows write nothing, no layer of the graph asks either.
    if (!fixed.cells[i].slots.defined() || !from.cells[i].slots.defined()) continue;
    set_padded(fixed.cells[i].slots, from.cells[i].slots);
    set_rope(fixed.cells[i].rope, from.cells[i].rope);
  }
  for (size_t i = 0; i < fixed.ropes.size(); ++i) set_rope(fixed.ropes[i], from.ropes[i]);
}

}  // namespace reprise
