#include "backends/gated_memory.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "kernel_testing.h"

namespace reprise {
namespace {

std::vector<double> expected(const at::Tensor& residual, const at::Tensor& kv, const at::Tensor& qk_weight,
                             double eps) {
  const auto T = static_cast<size_t>(residual.size(0)), S = static_cast<size_t>(residual.size(1)),
             H = static_cast<size_t>(residual.size(2));
  std::vector<double> x = doubles(residual);
  const auto memory = doubles(kv), w = doubles(qk_weight);
  const auto n = static_cast<double>(H);
  for (size_t t = 0; t < T; ++t) {
    const double* value = memory.data() + (t * (S + 1) + S) * H;
    for (size_t s = 0; s < S; ++s) {
      double* stream = x.data() + (t * S + s) * H;
      const double* key = memory.data() + (t * (S + 1) + s) * H;
      double product = 0, squares = 0, key_squares = 0;
      for (size_t h = 0; h < H; ++h) {
        product += stream[h] * w[s * H + h] * key[h];
        squares += stream[h] * stream[h];
        key_squares += key[h] * key[h];
      }
      const double d = product / std::sqrt(squares / n + eps) / std::sqrt(key_squares / n + eps) / std::sqrt(n);
      const double sign = d > 0 ? 1 : d < 0 ? -1 : 0;
      const double gate = 1 / (1 + std::exp(-sign * std::sqrt(std::max(std::fabs(d), 1e-6))));
      for (size_t h = 0; h < H; ++h) stream[h] += gate * value[h];
    }
  }
  return x;
}

class Engram : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Engram, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST_P(Engram, AddsTheGatedValueToEveryStream) {
  constexpr unsigned kSeed = 82;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (const int64_t H : {8, 40, 129}) {
    for (const auto kv_dtype : {at::kFloat, GetParam()}) {
      at::Tensor residual = normal({13, 4, H}, random, GetParam());
      const at::Tensor kv = normal({13, 5 * H}, random, kv_dtype);
      const at::Tensor qk_weight = normal({4, H}, random);
      const auto wanted = expected(residual, kv, qk_weight, 1e-20);
      add_gated_memory(kv, qk_weight, 1e-20, residual);
      expect_close(residual, wanted, tolerance_of(GetParam()));
    }
  }
}

// Two channels, one stream: d = (x0 k0 + x1 k1) / (rms x rms k sqrt 2).
TEST(AddGatedMemory, ByHandAtTheClampOfTheGate) {
  const auto gate_of = [](float x0, float x1, float k0, float k1) {
    at::Tensor residual = tensor_of<float>({x0, x1}).view({1, 1, 2});
    add_gated_memory(tensor_of<float>({k0, k1, 1000, 0}).view({1, 4}), at::full({1, 2}, 1.0, at::kFloat), 1e-20,
                     residual);
    return (doubles(residual)[0] - x0) / 1000;
  };
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  EXPECT_NEAR(gate_of(1, 1, 1, 1), sigmoid(std::sqrt(std::sqrt(2.0))), 1e-6);  // d = 2 / sqrt 2
  EXPECT_NEAR(gate_of(1, 1, -1, -1), sigmoid(-std::sqrt(std::sqrt(2.0))), 1e-6);
  EXPECT_NEAR(gate_of(1, 1, 1, -1), 0.5, 1e-7);  // d = 0 has no sign
  EXPECT_NEAR(gate_of(0, 0, 1, 1), 0.5, 1e-7);   // nor has a stream of zeros
  // |d| = sqrt 2 * 1e-8 is below the clamp: the gate stands where |d| = 1e-6 puts it, 0.00025 from a half.
  const float tiny = 2e-8f;
  EXPECT_NEAR(gate_of(1, tiny, tiny, 1), sigmoid(1e-3), 2e-6);
  EXPECT_NEAR(gate_of(1, tiny, -tiny, -1), sigmoid(-1e-3), 2e-6);
}

TEST_P(Engram, ZeroKeysAndStreamsStayFinite) {
  at::Tensor residual = at::full({2, 4, 16}, 0.0, GetParam());
  at::Tensor kv = at::full({2, 80}, 0.0, at::kFloat);
  kv.narrow(1, 64, 16).fill_(3);
  add_gated_memory(kv, at::full({4, 16}, 1.0, at::kFloat), 1e-20, residual);
  EXPECT_EQ(doubles(residual), std::vector<double>(128, 1.5));
}

TEST_P(Engram, ARowDependsOnItselfAlone) {
  std::mt19937 random(83);
  const int64_t T = 50, S = 4, H = 40;
  const at::Tensor residual = normal({T, S, H}, random, GetParam());
  const at::Tensor kv = normal({T, (S + 1) * H}, random);
  const at::Tensor qk_weight = normal({S, H}, random);
  expect_rows_independent(T, 83, [&](const auto& rows) {
    at::Tensor x = rows_of(residual, rows);
    add_gated_memory(rows_of(kv, rows), qk_weight, 1e-20, x);
    return x;
  });
}

TEST(AddGatedMemory, SaysWhatDoesNotFit) {
  at::Tensor residual = at::full({2, 4, 8}, 0.0, at::kFloat);
  EXPECT_THROW(add_gated_memory(at::full({2, 32}, 0.0, at::kFloat), at::full({4, 8}, 1.0, at::kFloat), 0, residual),
               std::logic_error);
}

}  // namespace
}  // namespace reprise
