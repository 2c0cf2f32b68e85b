#include "inputs/numpy_random.h"

#include <array>
#include <bit>
#include <limits>

#include "reprise/error.h"

namespace reprise {
namespace {

// numpy.random.SeedSequence(seed).generate_state(4, uint64): a pool of four words, mixed all with all, then stretched.
class SeedSequence {
 public:
  explicit SeedSequence(uint64_t seed) {
    const std::array<uint32_t, 4> entropy{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), 0, 0};
    for (size_t i = 0; i < pool_.size(); ++i) pool_[i] = hash(entropy[i]);
    for (size_t source = 0; source < pool_.size(); ++source) {
      for (size_t target = 0; target < pool_.size(); ++target) {
        if (source != target) pool_[target] = mix(pool_[target], hash(pool_[source]));
      }
    }
  }

  std::array<uint64_t, 4> generate_state() const {
    std::array<uint64_t, 4> words{};
    uint32_t constant = 0x8b51f9ddu;
    for (size_t i = 0; i < 2 * words.size(); ++i) {
      uint32_t value = pool_[i % pool_.size()] ^ constant;
      constant *= 0x58f38dedu;
      value *= constant;
      value ^= value >> 16;
      words[i / 2] |= static_cast<uint64_t>(value) << (i % 2 * 32);
    }
    return words;
  }

 private:
  uint32_t hash(uint32_t value) {
    value ^= constant_;
    constant_ *= 0x931e8875u;
    value *= constant_;
    return value ^ (value >> 16);
  }

  static uint32_t mix(uint32_t x, uint32_t y) {
    const uint32_t value = 0xca01f9ddu * x - 0x4973f715u * y;
    return value ^ (value >> 16);
  }

  uint32_t constant_ = 0x43b0d7e5u;
  std::array<uint32_t, 4> pool_{};
};

}  // namespace

NumpyGenerator::NumpyGenerator(uint64_t seed) {
  const std::array<uint64_t, 4> words = SeedSequence(seed).generate_state();
  increment_ = (((static_cast<uint128>(words[2]) << 64) | words[3]) << 1) | 1;
  next64();
  state_ += (static_cast<uint128>(words[0]) << 64) | words[1];
  next64();
}

// PCG64: a 128-bit linear congruential step, then XSL-RR.
uint64_t NumpyGenerator::next64() {
  constexpr uint128 kMultiplier = (static_cast<uint128>(0x2360ed051fc65da4u) << 64) | 0x4385df649fccf645u;
  state_ = state_ * kMultiplier + increment_;
  const uint64_t high = static_cast<uint64_t>(state_ >> 64);
  return std::rotr(high ^ static_cast<uint64_t>(state_), static_cast<int>(high >> 58));
}

uint32_t NumpyGenerator::next32() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  const uint64_t draw = next64();
  spare_ = static_cast<uint32_t>(draw >> 32);
  has_spare_ = true;
  return static_cast<uint32_t>(draw);
}

// Lemire's method: the upper half of draw * high, with the draws that would favour some values rejected.
// NumPy takes 32-bit draws where the range allows.
int64_t NumpyGenerator::integer(int64_t high) {
  REPRISE_ENSURE(high > 0, "wanted a positive bound but got ", high);
  const uint64_t range = static_cast<uint64_t>(high);
  if (range == 1) return 0;  // draws nothing
  if (range <= uint64_t{1} << 32) {
    const uint64_t threshold = (uint64_t{1} << 32) % range;
    uint64_t product = 0;
    do product = next32() * range;
    while (static_cast<uint32_t>(product) < threshold);
    return static_cast<int64_t>(product >> 32);
  }
  const uint64_t threshold = (std::numeric_limits<uint64_t>::max() - (range - 1)) % range;  // 2^64 mod range
  uint128 product = 0;
  do product = static_cast<uint128>(next64()) * range;
  while (static_cast<uint64_t>(product) < threshold);
  return static_cast<int64_t>(product >> 64);
}

}  // namespace reprise
