#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "reprise/forward_context.h"

namespace reprise {

// Cells of a cache group. Position (or compressed position) c of the request in state slot s lies in cell
// block_table[s, c / cells_per_page] * cells_per_page + c % cells_per_page.
struct PagedCells {
  at::Tensor cells;  // [num_cells, D]
  GroupRows group;
  int64_t cells_per_page = 0;
};

}  // namespace reprise
