#pragma once

#include <ATen/core/Tensor.h>

#include "reprise/forward_context.h"

namespace reprise {

// Softmax-weighted sum over each group of r consecutive tokens, per channel: for the row that completes a group,
// out[t] = sum_j softmax_j(g_j) v_j over the group's r tokens; other rows are left as they are. v, g [T, D] float32.
// Tokens before the batch come from `partial` [cells, r, 2, D] float32, cell = state slot; the rows of a trailing
// incomplete group go there afterwards.
void compress_groups(const at::Tensor& v, const at::Tensor& g, const AttentionMetadata& rows, const at::Tensor& partial,
                     const at::Tensor& out);

}  // namespace reprise
