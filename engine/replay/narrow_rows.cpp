#include "replay/narrow_rows.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <utility>

#include "memory/tensor_source.h"
#include "replay/row_copy.h"

namespace reprise {
namespace {

at::Tensor index_on(const RowsToKeep& keep, const at::Device& device) {
  if (keep.index.defined()) return keep.index.to(device);
  at::Tensor index = at::empty({keep.runs.num_rows()}, at::kLong);
  int64_t* row = index.mutable_data_ptr<int64_t>();
  for (const RowRun& run : keep.runs.runs()) {
    for (int64_t i = 0; i < run.count; ++i) *row++ = run.from + i;
  }
  return index.to(device);
}

// Ascending rows never overwrite what a later one reads; in any other order all leave the buffer before any comes back.
void compact(const at::Tensor& buffer, const RowsToKeep& keep) {
  if (keep.runs.is_one_run() && keep.runs.first() == 0) return;
  if (!keep.ascend || !copies_as_bytes(buffer) || !buffer.is_contiguous()) {
    const at::Tensor rows = buffer.index_select(0, index_on(keep, buffer.device()));
    buffer.narrow(0, 0, keep.runs.num_rows()).copy_(rows);
    return;
  }
  const size_t row_bytes = buffer.size(0) == 0 ? 0 : buffer.nbytes() / static_cast<size_t>(buffer.size(0));
  auto* data = static_cast<std::byte*>(buffer.mutable_data_ptr());
  for (const RowRun& run : keep.runs.runs()) {
    std::memmove(data + static_cast<size_t>(run.to) * row_bytes, data + static_cast<size_t>(run.from) * row_bytes,
                 static_cast<size_t>(run.count) * row_bytes);
  }
}

}  // namespace

at::Tensor keep_rows(const at::Tensor& state, const RowsToKeep& keep) {
  const int64_t num_rows = keep.runs.num_rows();
  if (keep.allow_views && keep.runs.is_one_run())
    return num_rows == state.size(0) ? state : state.narrow(0, keep.runs.first(), num_rows);
  if (!copies_as_bytes(state)) return state.index_select(0, index_on(keep, state.device()));
  at::DimVector sizes(state.sizes());
  sizes[0] = num_rows;
  at::Tensor kept = empty_tensor(sizes, state.options());
  gather_runs(state, keep.runs, kept);
  return kept;
}

void narrow_rows(Rows& states, const RowsToKeep& keep, std::span<const at::Tensor> row_buffers,
                 std::shared_ptr<ForwardContext> forward_context, std::optional<ScopedForwardContext>& scope) {
  for (const at::Tensor& buffer : row_buffers) compact(buffer, keep);
  for (at::Tensor& state : states) {
    if (state.defined()) state = keep_rows(state, keep);
  }
  scope.emplace(std::move(forward_context));
}

}  // namespace reprise
