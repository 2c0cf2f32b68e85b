#include "layers/take_linear.h"

namespace reprise {

PackedWeight take_linear(WeightSource& weights, const std::string& name, int64_t out, int64_t in,
                         at::ScalarType dtype) {
  return PackedWeight(weights.take(name, {out, in}, dtype));
}

}  // namespace reprise
