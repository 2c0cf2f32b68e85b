#include "backends/compress_groups.h"

#include "backends/kernels.h"
#include "backends/room.h"
#include "reprise/error.h"

namespace reprise {

void compress_groups(const at::Tensor& v, const at::Tensor& g, const AttentionMetadata& rows, const at::Tensor& partial,
                     const at::Tensor& out) {
  REPRISE_ENSURE(v.is_contiguous() && g.is_contiguous() && partial.size(2) == 2 && partial.size(3) == v.size(1),
                 "the partial state holds one group of the compressor's width");
  room_of(v).compress_groups(v, g, rows, partial, out);
}

}  // namespace reprise
