#include "backends/norm.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "backends/rows.h"
#include "kernel_testing.h"

namespace reprise {
namespace {

class Norm : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Norm, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

std::vector<double> expected(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const auto rows = doubles(x);
  const auto w = doubles(weight);
  const size_t n = w.size();
  std::vector<double> y;
  for (size_t first = 0; first < rows.size(); first += n) {
    double squares = 0;
    for (size_t i = 0; i < n; ++i) squares += rows[first + i] * rows[first + i];
    for (size_t i = 0; i < n; ++i)
      y.push_back(w[i] * rows[first + i] / std::sqrt(squares / static_cast<double>(n) + eps));
  }
  return y;
}

TEST_P(Norm, DividesByTheRootMeanSquare) {
  constexpr unsigned kSeed = 31;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (const int64_t n : {1, 15, 16, 33, 128, 1000}) {
    for (const double eps : {1e-20, 1e-6, 0.5}) {
      const at::Tensor x = normal({9, n}, random, GetParam(), 3);
      const at::Tensor weight = normal({n}, random);
      expect_close(rms_norm(x, weight, eps), expected(x, weight, eps), tolerance_of(GetParam()));
    }
  }
}

TEST_P(Norm, ByHand) {
  // mean square of 1, -7, 5, 5 is 25
  const at::Tensor x = tensor_of<float>({1, -7, 5, 5}).view({1, 4}).to(GetParam());
  const at::Tensor y = rms_norm(x, tensor_of<float>({5, 5, 10, 0}), 1e-20);
  EXPECT_EQ(doubles(y), (std::vector<double>{1, -7, 10, 0}));
}

TEST_P(Norm, AnAllZeroRowStaysZeroAtTheReleasedEpsilon) {
  at::Tensor x = at::full({3, 40}, 0.0, GetParam());
  x.narrow(0, 1, 1).fill_(2);
  const at::Tensor y = rms_norm(x, at::full({40}, 1.5, at::kFloat), 1e-20);
  std::vector<double> wanted(120, 0);
  std::fill_n(wanted.begin() + 40, 40, 1.5);
  EXPECT_EQ(doubles(y), wanted);
}

TEST_P(Norm, ARowDependsOnItselfAlone) {
  std::mt19937 random(32);
  const at::Tensor x = normal({97, 72}, random, GetParam());
  const at::Tensor weight = normal({72}, random);
  expect_rows_independent(97, 32, [&](const auto& rows) { return rms_norm(rows_of(x, rows), weight, 1e-20); });
}

TEST_P(Norm, CastsRoundAsTorchDoes) {
  std::mt19937 random(33);
  const at::Tensor x = normal({300, 500}, random, GetParam(), 10);  // more values than one thread takes at a time
  EXPECT_TRUE(same_bits(to_float(x), x.to(at::kFloat)));
  const at::Tensor wide = normal({300, 500}, random);
  EXPECT_TRUE(same_bits(cast_rows(wide, GetParam()), wide.to(GetParam())));
  // 1 + 2^-8 lies between two bfloat16 values: to the even one; 1 + 3 * 2^-8 likewise, upward.
  EXPECT_EQ(doubles(cast_rows(tensor_of<float>({1.00390625f, 1.01171875f}), at::kBFloat16)),
            (std::vector<double>{1, 1.015625}));
}

TEST_P(Norm, EmbedsATokenInEveryStream) {
  std::mt19937 random(34);
  const at::Tensor table = normal({11, 24}, random, GetParam());
  const std::vector<int64_t> ids{10, 0, 3, 3, 7};
  const at::Tensor x = embed_streams(table, tensor_of(ids), 4);
  ASSERT_EQ(x.sizes(), (std::vector<int64_t>{5, 4, 24}));
  for (int64_t t = 0; t < 5; ++t) {
    for (int64_t s = 0; s < 4; ++s)
      EXPECT_TRUE(same_bits(x[t][s], table[ids[static_cast<size_t>(t)]])) << t << ", " << s;
  }
}

TEST_P(Norm, GathersRowsInTheOrderAskedFor) {
  std::mt19937 random(35);
  const at::Tensor x = normal({200, 3, 5}, random, GetParam());
  for (const std::vector<int64_t>& rows : {std::vector<int64_t>{}, {199}, {5, 2, 2, 199, 0}}) {
    EXPECT_TRUE(same_bits(gather_rows(x, tensor_of(rows)), x.index_select(0, tensor_of(rows))));
  }
  std::vector<int64_t> many(150);
  std::iota(many.begin(), many.end(), 50);
  EXPECT_TRUE(same_bits(gather_rows(x, tensor_of(many)), x.narrow(0, 50, 150)));
  EXPECT_THROW(gather_rows(x.narrow(2, 0, 2), tensor_of<int64_t>({0})), std::logic_error);
}

TEST(CompactRows, MovesRowsUpAndLeavesTheRest) {
  const at::Tensor x = tensor_of<int32_t>({0, 1, 10, 11, 20, 21, 30, 31, 40, 41}).view({5, 2});
  compact_rows(x, tensor_of<int64_t>({1, 2, 4}));
  EXPECT_EQ(doubles(x), (std::vector<double>{10, 11, 20, 21, 40, 41, 30, 31, 40, 41}));
  const at::Tensor before = x.clone();
  compact_rows(x, tensor_of<int64_t>({}));
  compact_rows(x, tensor_of<int64_t>({0, 1, 2, 3, 4}));
  EXPECT_TRUE(same_bits(x, before));
}

}  // namespace
}  // namespace reprise
