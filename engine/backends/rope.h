#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "reprise/forward_context.h"

namespace reprise {

struct YarnParams {
  double factor = 1;  // 1 = no scaling
  double original_max_position = 0;
  double beta_fast = 32;
  double beta_slow = 1;
};

// The rotary frequencies f_j = theta^(-2j/R), j < R/2, with YaRN's interpolation (no magnitude factor).
std::vector<float> rope_frequencies(int64_t rope_dim, double theta, const YarnParams& yarn);

// Cosines and sines of (position - offset) * frequency in float32 into `angles`; positions int64 [T].
void rope_angles(const at::Tensor& positions, int64_t offset, const std::vector<float>& frequencies,
                 const RopeRows& angles);

}  // namespace reprise
