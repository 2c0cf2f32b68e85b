#include "backends/cache_write.h"

#include "backends/kernels.h"
#include "backends/room.h"
#include "reprise/error.h"

namespace reprise {

void write_cells(const at::Tensor& x, const CellWrite& write, const at::Tensor& cells) {
  REPRISE_ENSURE(x.is_contiguous() && cells.size(1) == x.size(1) && write.slots.size(0) == x.size(0),
                 "one slot and one cell's width per row");
  room_of(x).write_cells(x, write, cells);
}

at::Tensor rotate_and_round(const at::Tensor& x, int64_t head_dim, const RopeRows& rope, CacheFormat format) {
  REPRISE_ENSURE(x.is_contiguous() && x.size(1) % head_dim == 0, "rows of whole heads");
  return room_of(x).rotate_and_round(x, head_dim, rope, format);
}

}  // namespace reprise
