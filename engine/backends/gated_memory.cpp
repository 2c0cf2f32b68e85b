#include "backends/gated_memory.h"

#include "backends/kernels.h"
#include "backends/room.h"
#include "reprise/error.h"

namespace reprise {

void add_gated_memory(const at::Tensor& kv, const at::Tensor& qk_weight, double eps, const at::Tensor& residual) {
  REPRISE_ENSURE(
      kv.is_contiguous() && kv.size(0) == residual.size(0) && kv.size(1) == (residual.size(1) + 1) * residual.size(2),
      "engram memory holds a key per stream and one value for every row");
  room_of(residual).add_gated_memory(kv, qk_weight, eps, residual);
}

}  // namespace reprise
