#include "backends/cast.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "kernel_testing.h"

namespace reprise {
namespace {

class Cast : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Cast, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST_P(Cast, RoundsAsTorchDoes) {
  std::mt19937 random(33);
  const at::Tensor x = normal({300, 500}, random, GetParam(), 10);  // more values than one thread takes at a time
  EXPECT_TRUE(same_bits(to_float(x), x.to(at::kFloat)));
  const at::Tensor wide = normal({300, 500}, random);
  EXPECT_TRUE(same_bits(cast_rows(wide, GetParam()), wide.to(GetParam())));
  // 1 + 2^-8 lies between two bfloat16 values: to the even one; 1 + 3 * 2^-8 likewise, upward.
  EXPECT_EQ(doubles(cast_rows(tensor_of<float>({1.00390625f, 1.01171875f}), at::kBFloat16)),
            (std::vector<double>{1, 1.015625}));
}

TEST_P(Cast, ReadsValuesAsFloats) {
  std::mt19937 random(37);
  const at::Tensor x = normal({300, 500}, random, GetParam());
  at::Tensor y = nans({300, 500}, at::kFloat);
  read_floats(x, {y.mutable_data_ptr<float>(), static_cast<size_t>(y.numel())});
  EXPECT_TRUE(same_bits(y, x.to(at::kFloat)));
}

TEST(Casts, SayWhatDoesNotFit) {
  std::mt19937 random(38);
  EXPECT_THROW(to_float(normal({4, 8}, random, at::kBFloat16).t()), std::logic_error);
  EXPECT_THROW(cast_rows(normal({4, 8}, random).t(), at::kBFloat16), std::logic_error);
  std::vector<float> too_few(31);
  EXPECT_THROW(read_floats(normal({4, 8}, random), too_few), std::logic_error);
}

}  // namespace
}  // namespace reprise
