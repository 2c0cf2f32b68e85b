#include "backends/rope.h"

#include <ATen/Parallel.h>

#include <cmath>

namespace reprise::cpu {

void rope_angles(const at::Tensor& positions, int64_t offset, const std::vector<float>& frequencies,
                 const RopeRows& angles) {
  const int64_t rows = positions.size(0);
  const auto half = static_cast<int64_t>(frequencies.size());
  const int64_t* position = positions.const_data_ptr<int64_t>();
  float* cos = angles.cos.mutable_data_ptr<float>();
  float* sin = angles.sin.mutable_data_ptr<float>();
  at::parallel_for(0, rows, 32, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t j = 0; j < half; ++j) {
        // The angle is rounded to float32 as the model was trained with it.
        const auto angle =
            static_cast<double>(static_cast<float>(position[t] - offset) * frequencies[static_cast<size_t>(j)]);
        cos[t * half + j] = static_cast<float>(std::cos(angle));
        sin[t * half + j] = static_cast<float>(std::sin(angle));
      }
    }
  });
}

}  // namespace reprise::cpu
