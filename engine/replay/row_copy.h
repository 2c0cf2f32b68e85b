#pragma once

#include <ATen/core/Tensor.h>

#include "replay/replay_rows.h"

namespace reprise {

// Whether the rows of a tensor can be copied as bytes: plain strided CPU memory, each row contiguous.
bool has_byte_rows(const at::Tensor& tensor);

// kept[i] = batch[rows[i]]; `kept` is contiguous with the same row shape and dtype. Both have byte rows.
void gather_rows(const at::Tensor& batch, const ReplayRows& rows, const at::Tensor& kept);

// batch[rows[i]] = kept[i], in the order of i where a row repeats. Both contiguous with byte rows.
void scatter_rows(const at::Tensor& kept, const ReplayRows& rows, const at::Tensor& batch);

}  // namespace reprise
