#include "backends/embedding.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "kernel_testing.h"

namespace reprise {
namespace {

class Embedding : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Embedding, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST_P(Embedding, EmbedsATokenInEveryStream) {
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

TEST_P(Embedding, LooksUpRowsSideBySide) {
  std::mt19937 random(81);
  const at::Tensor table = normal({30, 6}, random, GetParam());
  const std::vector<int64_t> rows{29, 0, 3, 3, 7, 11, 0, 28};
  const at::Tensor e = lookup_rows(table, tensor_of(rows).view({2, 4}));
  ASSERT_EQ(e.sizes(), (std::vector<int64_t>{2, 24}));
  EXPECT_TRUE(same_bits(e.view({8, 6}), table.index_select(0, tensor_of(rows))));
}

TEST(Lookups, SayWhatDoesNotFit) {
  std::mt19937 random(82);
  EXPECT_THROW(embed_streams(normal({4, 8}, random).t(), tensor_of<int64_t>({0}), 2), std::logic_error);
  EXPECT_THROW(lookup_rows(normal({4, 8}, random).t(), tensor_of<int64_t>({0}).view({1, 1})), std::logic_error);
}

}  // namespace
}  // namespace reprise
