#include "backends/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "backends/kernels.h"
#include "backends/room.h"
#include "reprise/error.h"

namespace reprise {

std::vector<float> rope_frequencies(int64_t rope_dim, double theta, const YarnParams& yarn) {
  std::vector<float> frequencies(static_cast<size_t>(rope_dim / 2));
  const auto dim = static_cast<double>(rope_dim);
  // The channel pair whose wave turns `beta` times over the original context.
  const auto pair_of = [&](double beta) {
    return dim * std::log(yarn.original_max_position / (beta * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  const bool scaled = yarn.factor != 1;
  const double low = scaled ? std::max(std::floor(pair_of(yarn.beta_fast)), 0.0) : 0;
  const double high = scaled ? std::min(std::ceil(pair_of(yarn.beta_slow)), dim - 1) : 0;
  for (size_t j = 0; j < frequencies.size(); ++j) {
    const auto plain = static_cast<float>(1.0 / std::pow(theta, 2 * static_cast<double>(j) / dim));
    const auto ramp =
        static_cast<float>(std::clamp((static_cast<double>(j) - low) / std::max(high - low, 1e-3), 0.0, 1.0));
    frequencies[j] = scaled ? plain / static_cast<float>(yarn.factor) * ramp + plain * (1.0f - ramp) : plain;
  }
  return frequencies;
}

void rope_angles(const at::Tensor& positions, int64_t offset, const std::vector<float>& frequencies,
                 const RopeRows& angles) {
  const int64_t count = positions.size(0) * static_cast<int64_t>(frequencies.size());
  REPRISE_ENSURE(angles.cos.numel() == count && angles.sin.numel() == count, "one angle per frequency");
  room_of(positions).rope_angles(positions, offset, frequencies, angles);
}

}  // namespace reprise
