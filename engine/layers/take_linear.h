#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "backends/linear.h"
#include "checkpoint/weight_source.h"

namespace reprise {

// Takes a linear layer's weight [out, in] and packs it; `dtype` float32 or bfloat16.
PackedWeight take_linear(WeightSource& weights, const std::string& name, int64_t out, int64_t in, at::ScalarType dtype);

}  // namespace reprise
