#include "backends/rows.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "kernel_testing.h"

namespace reprise {
namespace {

class Rows : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Rows, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST_P(Rows, EmbedsATokenInEveryStream) {
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

TEST_P(Rows, GathersRowsInTheOrderAskedFor) {
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

TEST(CopyRows, FillsTheFirstRowsAndLeavesTheRest) {
  const at::Tensor y = at::full({4, 2}, 9, at::kInt);
  copy_rows(tensor_of<int32_t>({1, 2, 3, 4}).view({2, 2}), y);
  EXPECT_EQ(doubles(y), (std::vector<double>{1, 2, 3, 4, 9, 9, 9, 9}));
  copy_rows(at::empty({0, 2}, at::kInt), y);
  EXPECT_EQ(doubles(y), (std::vector<double>{1, 2, 3, 4, 9, 9, 9, 9}));
  EXPECT_THROW(copy_rows(at::empty({5, 2}, at::kInt), y), std::logic_error);
  EXPECT_THROW(copy_rows(at::empty({1, 3}, at::kInt), y), std::logic_error);
  EXPECT_THROW(copy_rows(at::empty({1, 2}, at::kFloat), y), std::logic_error);
}

TEST(FillRows, FillsTheRowsBehindTheFirst) {
  for (const auto dtype : {at::kInt, at::kLong}) {
    const at::Tensor x = at::full({3, 2}, 9, dtype);
    fill_rows(x, 1, -1);
    EXPECT_EQ(doubles(x), (std::vector<double>{9, 9, -1, -1, -1, -1}));
    fill_rows(x, 3, 5);
    EXPECT_EQ(doubles(x), (std::vector<double>{9, 9, -1, -1, -1, -1}));
    fill_rows(x, 0, 0);
    EXPECT_EQ(doubles(x), std::vector<double>(6, 0));
  }
  const at::Tensor x = nans({2, 3}, at::kBFloat16);
  fill_rows(x, 1, 0);
  EXPECT_TRUE(x[0].isnan().all().item<bool>());
  EXPECT_EQ(doubles(x[1]), std::vector<double>(3, 0));
  EXPECT_THROW(fill_rows(x, 0, 1), std::logic_error);
}

}  // namespace
}  // namespace reprise
