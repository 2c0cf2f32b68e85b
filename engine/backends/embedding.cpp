#include "backends/embedding.h"

#include "backends/kernels.h"
#include "backends/room.h"
#include "reprise/error.h"

namespace reprise {

at::Tensor embed_streams(const at::Tensor& table, const at::Tensor& ids, int64_t streams) {
  REPRISE_ENSURE(table.is_contiguous() && ids.is_contiguous(), "embed_streams takes a dense table and dense ids");
  return room_of(table).embed_streams(table, ids, streams);
}

at::Tensor lookup_rows(const at::Tensor& table, const at::Tensor& rows) {
  REPRISE_ENSURE(table.is_contiguous() && rows.is_contiguous(), "lookup_rows takes a dense table and dense rows");
  return room_of(table).lookup_rows(table, rows);
}

}  // namespace reprise
