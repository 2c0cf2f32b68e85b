#include "backends/gated_memory.h"

#include "backends/kernels.h"
#include "backends/room.h"
#include "memory/tensor_source.h"
#include "reprise/error.h"

namespace reprise {

at::Tensor lookup_rows(const at::Tensor& table, const at::Tensor& rows) {
  REPRISE_ENSURE(table.is_contiguous() && rows.is_contiguous(), "lookup_rows takes a dense table and dense rows");
  at::Tensor e = empty_tensor({rows.size(0), rows.size(1) * table.size(1)}, table.options());
  if (e.numel() > 0) room_of(table).gather_rows(table, rows, e);
  return e;
}

void add_gated_memory(const at::Tensor& kv, const at::Tensor& qk_weight, double eps, const at::Tensor& residual) {
  REPRISE_ENSURE(
      kv.is_contiguous() && kv.size(0) == residual.size(0) && kv.size(1) == (residual.size(1) + 1) * residual.size(2),
      "engram memory holds a key per stream and one value for every row");
  room_of(residual).add_gated_memory(kv, qk_weight, eps, residual);
}

}  // namespace reprise
