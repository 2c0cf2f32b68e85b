#include "backends/rows.h"

#include "backends/kernels.h"
#include "backends/room.h"
#include "memory/tensor_source.h"
#include "reprise/error.h"

namespace reprise {

namespace {

bool are_alike(const at::Tensor& x, const at::Tensor& y) {
  return x.is_contiguous() && y.is_contiguous() && y.scalar_type() == x.scalar_type() &&
         y.sizes().slice(1) == x.sizes().slice(1);
}

}  // namespace

at::Tensor embed_streams(const at::Tensor& table, const at::Tensor& ids, int64_t streams) {
  REPRISE_ENSURE(table.is_contiguous() && ids.is_contiguous(), "embed_streams takes a dense table and dense ids");
  return room_of(table).embed_streams(table, ids, streams);
}

at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& rows) {
  at::DimVector sizes(x.sizes());
  sizes[0] = rows.size(0);
  at::Tensor y = empty_tensor(sizes, x.options());
  gather_rows_out(x, rows, y);
  return y;
}

void gather_rows_out(const at::Tensor& x, const at::Tensor& rows, const at::Tensor& y) {
  REPRISE_ENSURE(are_alike(x, y) && rows.is_contiguous() && y.size(0) >= rows.size(0),
                 "gather_rows takes dense rows to dense rows like them");
  if (rows.size(0) > 0) room_of(x).gather_rows(x, rows, y);
}

void compact_rows(const at::Tensor& x, const at::Tensor& rows) {
  REPRISE_ENSURE(x.is_contiguous() && rows.is_contiguous(), "compact_rows takes dense rows");
  if (rows.size(0) > 0) room_of(x).compact_rows(x, rows);
}

void copy_rows(const at::Tensor& x, const at::Tensor& y) {
  REPRISE_ENSURE(are_alike(x, y) && y.size(0) >= x.size(0), "rows of shape ", x.sizes(), " do not fit into ",
                 y.sizes());
  if (x.size(0) > 0) room_of(y).copy_rows(x, y);
}

void fill_rows(const at::Tensor& x, int64_t first, int64_t value) {
  const bool holds_integers = x.scalar_type() == at::kInt || x.scalar_type() == at::kLong;
  REPRISE_ENSURE(x.is_contiguous() && (value == 0 || holds_integers),
                 "fill_rows takes dense rows, and a value other "
                 "than 0 for int32 and int64 alone");
  if (first < x.size(0)) room_of(x).fill_rows(x, first, value);
}

}  // namespace reprise
