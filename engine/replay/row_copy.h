#pragma once

#include <ATen/core/Tensor.h>

#include "reprise/row_runs.h"

namespace reprise {

// Whether the rows of a tensor can be copied as bytes: plain strided CPU memory, each row contiguous, no gradient to
// record.
bool copies_as_bytes(const at::Tensor& tensor);

// kept[i] = batch[rows[i]]; `kept` is contiguous with the same row shape and dtype. Both copy as bytes.
void gather_runs(const at::Tensor& batch, const RowRuns& rows, const at::Tensor& kept);

// batch[rows[i]] = kept[i], in the order of i unless told that it does not matter. Both contiguous, copied as bytes.
void scatter_runs(const at::Tensor& kept, const RowRuns& rows, bool in_any_order, const at::Tensor& batch);

}  // namespace reprise
