#include "backends/norm.h"

#include "backends/kernels.h"
#include "backends/room.h"
#include "reprise/error.h"

namespace reprise {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  REPRISE_ENSURE(x.is_contiguous() && weight.numel() == x.size(1), "rms_norm takes dense rows of the weight's size");
  return room_of(x).rms_norm(x, weight, eps);
}

}  // namespace reprise
