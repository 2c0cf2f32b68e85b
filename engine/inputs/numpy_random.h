#pragma once

#include <cstdint>

namespace reprise {

// Draws what numpy.random.default_rng(seed).integers(0, high, dtype=int64) draws: checkpoints fix constants by NumPy
// seeds.
class NumpyGenerator {
 public:
  explicit NumpyGenerator(uint64_t seed);

  // The next value of [0, high), high > 0.
  int64_t integer(int64_t high);

 private:
  __extension__ using uint128 = unsigned __int128;

  uint64_t next64();
  uint32_t next32();

  uint128 state_ = 0;
  uint128 increment_ = 0;
  uint32_t spare_ = 0;  // the upper half of a draw whose lower half next32 gave out
  bool has_spare_ = false;
};

}  // namespace reprise
