#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace reprise {

struct CompressParams {
  int64_t ratio = 0;           // r > 1
  at::Tensor positions;        // [T] int64
  at::Tensor sequence_index;   // [T] int32; -1 = padding row
  at::Tensor sequence_starts;  // [sequences + 1] int64: sequence i owns rows [starts[i], starts[i + 1])
  at::Tensor state_slots;      // [sequences] int32
};

// Softmax-weighted sum over each group of r consecutive tokens, per channel: for the row that completes a group,
// out[t] = sum_j softmax_j(g_j) v_j over the group's r tokens; other rows are left as they are. v, g [T, D] float32.
// Tokens before the batch come from `partial` [cells, r, 2, D] float32, cell = state slot; the rows of a trailing
// incomplete group go there afterwards.
void compress_groups(const at::Tensor& v, const at::Tensor& g, const CompressParams& params, at::Tensor& partial,
                     at::Tensor& out);

}  // namespace reprise
