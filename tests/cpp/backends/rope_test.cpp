#include "backends/rope.h"

#include <gtest/gtest.h>

#include <numbers>

#include "backends/cpu/row_ops.h"
#include "kernel_testing.h"

namespace reprise {
namespace {

TEST(RopeFrequencies, AreARootOfTheta) {
  const auto f = rope_frequencies(8, 1e4, {});
  ASSERT_EQ(f.size(), 4u);
  EXPECT_FLOAT_EQ(f[0], 1.0f);
  EXPECT_FLOAT_EQ(f[1], 0.1f);
  EXPECT_FLOAT_EQ(f[2], 0.01f);
  EXPECT_FLOAT_EQ(f[3], 0.001f);
}

TEST(RopeFrequencies, FollowYarnsFormula) {
  const YarnParams released{16, 65536, 32, 1};
  for (const auto& [dim, theta, yarn] :
       std::vector<std::tuple<int64_t, double, YarnParams>>{{64, 1.6e5, released},
                                                            {16, 1.6e5, released},
                                                            {32, 1e4, {4, 4096, 32, 1}},
                                                            {8, 1e4, {40, 64, 32, 1}},
                                                            {64, 1e4, {}}}) {
    const auto f = rope_frequencies(dim, theta, yarn);
    ASSERT_EQ(static_cast<int64_t>(f.size()), dim / 2);
    const auto R = static_cast<double>(dim);
    const double turn = 2 * std::numbers::pi;
    const double low = std::max(
        std::floor(R * std::log(yarn.original_max_position / (yarn.beta_fast * turn)) / (2 * std::log(theta))), 0.0);
    const double high = std::min(
        std::ceil(R * std::log(yarn.original_max_position / (yarn.beta_slow * turn)) / (2 * std::log(theta))), R - 1);
    for (int64_t j = 0; j < dim / 2; ++j) {
      double wanted = std::pow(theta, -2.0 * static_cast<double>(j) / R);
      if (yarn.factor != 1) {
        const double ramp = std::clamp((static_cast<double>(j) - low) / std::max(high - low, 1e-3), 0.0, 1.0);
        wanted = wanted / yarn.factor * ramp + wanted * (1 - ramp);
      }
      EXPECT_NEAR(f[static_cast<size_t>(j)], wanted, 4e-7 * wanted)
          << "R " << dim << ", theta " << theta << ", pair " << j;
    }
  }
}

TEST(RopeFrequencies, OfTheReleasedModelByHand) {
  // low = floor(64 ln(65536 / (64 pi)) / (2 ln 1.6e5)) = floor(15.46) = 15; high = ceil(64 ln(65536 / (2 pi)) / (2
  // ln 1.6e5)) = 25
  const auto f = rope_frequencies(64, 1.6e5, {16, 65536, 32, 1});
  EXPECT_FLOAT_EQ(f[15], static_cast<float>(std::pow(1.6e5, -30.0 / 64)));
  EXPECT_FLOAT_EQ(f[25], static_cast<float>(std::pow(1.6e5, -50.0 / 64) / 16));
  EXPECT_FLOAT_EQ(f[31], static_cast<float>(std::pow(1.6e5, -62.0 / 64) / 16));
  EXPECT_FLOAT_EQ(f[20], static_cast<float>(std::pow(1.6e5, -40.0 / 64) * (0.5 / 16 + 0.5)));
}

RopeRows angles_of(const at::Tensor& positions, const std::vector<float>& frequencies, int64_t offset = 0) {
  const std::vector<int64_t> sizes{positions.size(0), static_cast<int64_t>(frequencies.size())};
  const RopeRows angles{at::empty(sizes), at::empty(sizes)};
  rope_angles(positions, offset, frequencies, angles);
  return angles;
}

TEST(RopeAngles, AreCosineAndSineOfTheFloatAngle) {
  const auto frequencies = rope_frequencies(16, 1e4, {});
  const std::vector<int64_t> positions{0, 1, 127, 65535, 1048575};
  const auto angles = angles_of(tensor_of(positions), frequencies);
  ASSERT_EQ(angles.cos.sizes(), (std::vector<int64_t>{5, 8}));
  const auto cos = doubles(angles.cos);
  const auto sin = doubles(angles.sin);
  for (size_t t = 0; t < 5; ++t) {
    for (size_t j = 0; j < 8; ++j) {
      const float angle = static_cast<float>(positions[t]) * frequencies[j];
      EXPECT_NEAR(cos[t * 8 + j], std::cos(static_cast<double>(angle)), 6e-8) << positions[t] << ", pair " << j;
      EXPECT_NEAR(sin[t * 8 + j], std::sin(static_cast<double>(angle)), 6e-8) << positions[t] << ", pair " << j;
    }
  }
}

TEST(RopeAngles, OfAPositionAreTheSameInEveryBatch) {
  const auto frequencies = rope_frequencies(64, 1.6e5, {16, 65536, 32, 1});
  std::vector<int64_t> positions(100);
  for (size_t t = 0; t < 100; ++t) positions[t] = static_cast<int64_t>(t * t * 97);
  expect_rows_independent(
      100, 41, [&](const auto& rows) { return angles_of(rows_of(tensor_of(positions), rows), frequencies).cos; });
}

TEST(RopeAngles, AnOffsetMovesEveryPositionBack) {
  const auto frequencies = rope_frequencies(16, 1e4, {});
  const auto moved = angles_of(tensor_of<int64_t>({3, 1003}), frequencies, 3);
  const auto plain = angles_of(tensor_of<int64_t>({0, 1000}), frequencies);
  EXPECT_TRUE(same_bits(moved.cos, plain.cos));
  EXPECT_TRUE(same_bits(moved.sin, plain.sin));
}

TEST(Rotate, TurnsAdjacentPairsOfTheLastChannels) {
  // A quarter turn of the first pair, a half turn of the second: (a, b) -> (-b, a) and (-a, -b).
  const std::vector<float> cos{0, -1}, sin{1, 0};
  std::vector<float> row{9, 8, 1, 2, 3, 4};
  cpu::rotate(row.data(), 6, cos.data(), sin.data(), 2, false);
  EXPECT_EQ(row, (std::vector<float>{9, 8, -2, 1, -3, -4}));
  cpu::rotate(row.data(), 6, cos.data(), sin.data(), 2, true);
  EXPECT_EQ(row, (std::vector<float>{9, 8, 1, 2, 3, 4}));
}

TEST(Rotate, BackUndoesForthAndScoresDependOnDistance) {
  constexpr unsigned kSeed = 42;
  std::mt19937 random(kSeed);
  const int64_t n = 48, rope = 32;
  const auto frequencies = rope_frequencies(rope, 1e4, {});
  const auto angles = angles_of(tensor_of<int64_t>({5, 12, 1005, 1012}), frequencies);
  const at::Tensor q = normal({n}, random), k = normal({n}, random);
  const auto turned = [&](const at::Tensor& x, int64_t at, bool inverse) {
    at::Tensor y = x.clone();
    cpu::rotate(y.mutable_data_ptr<float>(), n, angles.cos[at].const_data_ptr<float>(),
                angles.sin[at].const_data_ptr<float>(), rope / 2, inverse);
    return y;
  };
  expect_close(turned(turned(q, 2, false), 2, true), doubles(q), kFloatTolerance);
  const auto score = [&](int64_t of_q, int64_t of_k) {
    const auto a = doubles(turned(q, of_q, false)), b = doubles(turned(k, of_k, false));
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  };
  EXPECT_NEAR(score(1, 0), score(3, 2), 2e-3) << "seed " << kSeed;
  EXPECT_GT(std::fabs(score(1, 0) - score(0, 1)), 0.05) << "seed " << kSeed;
}

}  // namespace
}  // namespace reprise
