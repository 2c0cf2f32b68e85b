#include "backends/norm.h"

#include <gtest/gtest.h>

#include <stdexcept>

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

TEST(RmsNorm, SaysWhatDoesNotFit) {
  std::mt19937 random(36);
  EXPECT_THROW(rms_norm(normal({4, 8}, random).t(), normal({4}, random), 0), std::logic_error);
  EXPECT_THROW(rms_norm(normal({4, 8}, random), normal({4}, random), 0), std::logic_error);
}

}  // namespace
}  // namespace reprise
