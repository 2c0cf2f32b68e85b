#include "backends/linear.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "backends/cpu/packed_blocks.h"
#include "kernel_testing.h"

namespace reprise {
namespace {

std::vector<double> expected(const at::Tensor& x, const at::Tensor& weight) {
  const int64_t rows = x.size(0), in = x.size(1), out = weight.size(0);
  const auto a = doubles(x);
  const auto w = doubles(weight);
  std::vector<double> y;
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < in; ++i) sum += a[static_cast<size_t>(t * in + i)] * w[static_cast<size_t>(o * in + i)];
      y.push_back(sum);
    }
  }
  return y;
}

class Linear : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Linear, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST_P(Linear, IsXTimesTheTransposedWeight) {
  constexpr unsigned kSeed = 21;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (const int64_t out : {1, 24, 96, 128, 200, 288}) {
    for (const int64_t rows : {1, 5, 130}) {
      const int64_t in = 66;
      const at::Tensor x = normal({rows, in}, random, GetParam());
      const at::Tensor weight = normal({out, in}, random, GetParam(), 0.2f);
      const PackedWeight packed(weight);
      EXPECT_EQ(packed.out_features(), out);
      EXPECT_EQ(packed.in_features(), in);
      EXPECT_EQ(packed.dtype(), GetParam());
      const auto y = expected(x, weight);
      // A float32 result of bfloat16 operands is as good as one of float32 operands: their products are exact.
      expect_close(linear(x, packed, at::kFloat), y, kFloatTolerance);
      expect_close(linear(x, packed, at::kBFloat16), y, kBFloat16Tolerance);
    }
  }
}

TEST_P(Linear, ARowHasTheSameBitsAloneAndInEveryBatch) {
  constexpr unsigned kSeed = 22;
  std::mt19937 random(kSeed);
  for (const int64_t out : {24, 96, 128, 200, 288}) {
    const at::Tensor x = normal({300, 48}, random, GetParam());
    const PackedWeight weight(normal({out, 48}, random, GetParam()));
    for (const auto out_dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor whole = linear(x, weight, out_dtype);
      const int threads = at::get_num_threads();
      at::set_num_threads(1);  // hundreds of tiny products: on a busy machine threads would mostly wait for each other
      for (int64_t t = 0; t < 300; t += out == 200 ? 1 : 13) {
        ASSERT_TRUE(same_bits(linear(x.narrow(0, t, 1), weight, out_dtype), whole.narrow(0, t, 1)))
            << "row " << t << " of " << out;
      }
      for (int64_t m = 2; m <= 300; m += m < 20 ? 1 : 17) {
        const int64_t first = static_cast<int64_t>(random() % static_cast<unsigned>(301 - m));
        ASSERT_TRUE(same_bits(linear(x.narrow(0, first, m), weight, out_dtype), whole.narrow(0, first, m)))
            << m << " rows of " << out << ", seed " << kSeed;
      }
      at::set_num_threads(threads);
    }
  }
}

TEST_P(Linear, ARowHasTheSameBitsInAnyOrderOfRows) {
  constexpr unsigned kSeed = 27;
  std::mt19937 random(kSeed);
  const at::Tensor x = normal({140, 48}, random, GetParam());
  const PackedWeight weight(normal({200, 48}, random, GetParam()));
  expect_rows_independent(140, kSeed, [&](const auto& rows) { return linear(rows_of(x, rows), weight, GetParam()); });
}

// A group of heads is a column range of a wider tensor, on both sides.
TEST_P(Linear, GroupsMultiplyColumnsOfTheirOwn) {
  constexpr unsigned kSeed = 23;
  std::mt19937 random(kSeed);
  for (const int64_t out : {24, 200}) {
    for (const auto out_dtype : {at::kFloat, at::kBFloat16}) {
      at::Tensor x = nans({150, 192}, GetParam());  // the middle group's columns stay NaN
      for (const int64_t g : {0, 2}) x.narrow(1, g * 64, 64).copy_(normal({150, 64}, random, GetParam()));
      const at::Tensor weights = normal({3, out, 64}, random, GetParam());
      const PackedWeight stack(weights);
      EXPECT_EQ(stack.count(), 3);
      const at::Tensor y = linear(x, stack, out_dtype);
      ASSERT_EQ(y.sizes(), (std::vector<int64_t>{150, 3 * out}));
      for (const int64_t g : {0, 2}) {
        const at::Tensor alone = linear(x.narrow(1, g * 64, 64).contiguous(), PackedWeight(weights[g]), out_dtype);
        EXPECT_TRUE(same_bits(y.narrow(1, g * out, out), alone)) << "seed " << kSeed;
      }
      EXPECT_TRUE(y.narrow(1, out, out).isnan().all().item<bool>());
    }
  }
}

TEST_P(Linear, BothPathsMultiplyWholePackedWeights) {
  constexpr unsigned kSeed = 24;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const at::Tensor x = normal({9, 34}, random, GetParam());
  const at::Tensor weight = normal({200, 34}, random, GetParam(), 0.2f);
  const PackedWeight packed(weight);
  for (const auto path : {cpu::product_path(GetParam()), cpu::ProductPath::kPlain}) {
    const cpu::ProductScope scope(GetParam());
    at::Tensor y = nans({9, 203}, at::kFloat);
    cpu::PackedBlocks(packed).multiply(9, x.const_data_ptr(), 34, y.mutable_data_ptr<float>(), 203, path);
    expect_close(y.narrow(1, 0, 200), expected(x, weight), kFloatTolerance);
    EXPECT_TRUE(y.narrow(1, 200, 3).isnan().all().item<bool>());
  }
}

TEST(PackedWeight, NoRowsGiveNoRows) {
  std::mt19937 random(25);
  const PackedWeight weight(normal({24, 8}, random));
  EXPECT_EQ(linear(at::empty({0, 8}), weight, at::kFloat).sizes(), (std::vector<int64_t>{0, 24}));
}

TEST(PackedWeight, SaysWhatDoesNotFit) {
  std::mt19937 random(26);
  EXPECT_THROW(PackedWeight(normal({4, 7}, random, at::kBFloat16)), std::logic_error);
  EXPECT_THROW(PackedWeight(normal({8, 4}, random).t()), std::logic_error);
  EXPECT_THROW(PackedWeight(normal({4, 8}, random, at::kDouble)), std::logic_error);
  const PackedWeight weight(normal({4, 8}, random));
  EXPECT_THROW(linear(normal({2, 6}, random), weight, at::kFloat), std::logic_error);
  EXPECT_THROW(linear(normal({2, 8}, random, at::kBFloat16), weight, at::kFloat), std::logic_error);
  EXPECT_THROW(linear(normal({8, 2}, random).t(), weight, at::kFloat), std::logic_error);
  EXPECT_THROW(linear(normal({2, 8}, random), PackedWeight(normal({2, 4, 8}, random)), at::kFloat), std::logic_error);
  EXPECT_THROW(weight.pack(0, normal({8, 4}, random)), std::logic_error);
  EXPECT_THROW(weight.pack(0, normal({4, 8}, random, at::kBFloat16)), std::logic_error);
}

}  // namespace
}  // namespace reprise
