#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <span>

#include "models/model.h"
#include "reprise/forward_context.h"
#include "reprise/row_runs.h"

namespace reprise {

// Rows to go on with, and how copies of them are made.
struct RowsToKeep {
  const RowRuns& runs;
  bool ascend = true;       // rows ascend and none repeats
  at::Tensor index = {};    // the same rows as a tensor, where the caller has one
  bool allow_views = true;  // a view of the state serves where the rows are consecutive
};

// The only code that narrows rows: keeps the wanted ones of each state (undefined states stay so), compacts the row
// buffers to their first rows in place, and makes the rows' context current, in `scope` in place of what it held.
void narrow_rows(Rows& states, const RowsToKeep& keep, std::span<const at::Tensor> row_buffers,
                 std::shared_ptr<ForwardContext> forward_context, std::optional<ScopedForwardContext>& scope);

// The wanted rows of one state; copies in memory of empty_tensor.
at::Tensor keep_rows(const at::Tensor& state, const RowsToKeep& keep);

}  // namespace reprise
