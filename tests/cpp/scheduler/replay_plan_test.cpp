#include "scheduler/replay_plan.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace reprise {
namespace {

// Three encoder layers (0..2, the last KV source is 2) and three replay layers (3..5), W = 4.
constexpr DecoderFacts kDecoder{6, 3, 4, true};

std::vector<LayerRows> layers(ReplayMode mode, int64_t prompt_length, const DecoderFacts& facts = kDecoder) {
  return make_row_plan(mode, prompt_length, facts).layers;
}

TEST(ReplayPlan, BoundedKeepsTheLastWindowAndReadsNothingBelowIt) {
  const std::vector<LayerRows> expected = {{0, 0, 0}, {0, 0, 0}, {0, 16, 0}, {16, 16, 16}, {16, 16, 16}, {16, 19, 16}};
  EXPECT_EQ(layers(ReplayMode::kBounded, 20), expected);
}

TEST(ReplayPlan, ExactHaloShrinksByWindowMinusOneRowsALayer) {
  // T - 1 = 19; k = 1, 2, 3 compute from 19 - 6, 19 - 3, 19; the first receives from 19 - 9.
  const std::vector<LayerRows> expected = {{0, 0, 0}, {0, 0, 0}, {0, 10, 0}, {10, 13, 0}, {13, 16, 0}, {16, 19, 0}};
  EXPECT_EQ(layers(ReplayMode::kExact, 20), expected);
}

TEST(ReplayPlan, ThresholdsStopAtThePromptsStart) {
  const std::vector<LayerRows> exact = {{0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {0, 3, 0}, {3, 6, 0}};
  EXPECT_EQ(layers(ReplayMode::kExact, 7), exact);
  const std::vector<LayerRows> bounded = {{0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {0, 2, 0}};
  EXPECT_EQ(layers(ReplayMode::kBounded, 3), bounded)
      << "a prompt within W keeps every row but the last layer's unread outputs";
  EXPECT_TRUE(trims_nothing(make_row_plan(ReplayMode::kBounded, 1, kDecoder)));
}

TEST(ReplayPlan, LastRowIsForReplayLayersWithoutKv) {
  DecoderFacts shared = kDecoder;
  shared.replay_layers_own_kv = false;
  const std::vector<LayerRows> expected = {{0, 0, 0}, {0, 0, 0}, {0, 19, 0}, {19, 19, 0}, {19, 19, 0}, {19, 19, 0}};
  EXPECT_EQ(layers(ReplayMode::kLastRow, 20, shared), expected);
  EXPECT_EQ(layers(ReplayMode::kExact, 20, shared), expected)
      << "without window KV of their own, layers reach no other row";
  EXPECT_THROW(layers(ReplayMode::kLastRow, 20), std::invalid_argument);
}

TEST(ReplayPlan, OffAndDecodersThatCannotReplayTrimNothing) {
  EXPECT_TRUE(trims_nothing(make_row_plan(ReplayMode::kOff, 1000, kDecoder)));
  EXPECT_TRUE(trims_nothing(make_row_plan(ReplayMode::kBounded, 1000, DecoderFacts{6, 6, 4, true})));
  EXPECT_TRUE(trims_nothing(make_row_plan(ReplayMode::kExact, 1000, DecoderFacts{6, 0, 4, true})));
}

TEST(ReplayPlan, LayersHandRowsOnAndGeneratedRowsRunEverywhere) {
  for (ReplayMode mode : {ReplayMode::kOff, ReplayMode::kBounded, ReplayMode::kExact}) {
    for (int64_t prompt_length = 1; prompt_length <= 30; ++prompt_length) {
      const auto plan = layers(mode, prompt_length);
      ASSERT_EQ(plan.size(), 6u);
      for (size_t layer = 0; layer < plan.size(); ++layer) {
        EXPECT_LE(plan[layer].first_received, plan[layer].first_computed);
        EXPECT_LE(plan[layer].first_computed, prompt_length - 1);
        EXPECT_EQ(plan[layer].first_received, layer == 0 ? 0 : plan[layer - 1].first_computed);
      }
    }
  }
}

TEST(ReplayPlan, StepPolicyKeepsTheStepsLastWindow) {
  const std::vector<LayerRows> expected = {{0, 0, 0}, {0, 0, 0}, {0, 14, 0}, {14, 14, 14}, {14, 14, 14}, {14, 14, 14}};
  EXPECT_EQ(make_step_row_plan(10, 8, kDecoder).layers, expected);
  EXPECT_TRUE(trims_nothing(make_step_row_plan(10, 4, kDecoder))) << "an untrimmed chunk keeps the window KV it had";
}

TEST(ReplayPlan, CountsRowsOfAChunk) {
  EXPECT_EQ(count_rows(5, 0, 4), 0);
  EXPECT_EQ(count_rows(5, 0, 8), 3);
  EXPECT_EQ(count_rows(5, 6, 8), 8);
  const RowPlan plan = make_row_plan(ReplayMode::kExact, 20, kDecoder);
  EXPECT_EQ(count_received(&plan, 3, 8, 8), 6) << "rows 10..15";
  EXPECT_EQ(count_computed(&plan, 3, 8, 8), 3) << "rows 13..15";
  EXPECT_EQ(count_computed(nullptr, 3, 8, 8), 8);
}

}  // namespace
}  // namespace reprise
