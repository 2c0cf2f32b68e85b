#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>

namespace reprise::testing {

// Random choices, the same for the same seed.
class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}
  int64_t from(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine_); }
  bool chance(double p) { return std::bernoulli_distribution(p)(engine_); }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[from(0, static_cast<int64_t>(values.size()) - 1)];
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace reprise::testing
