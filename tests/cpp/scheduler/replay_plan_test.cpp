#include "scheduler/replay_plan.h"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>

#include "../decoder_facts.h"

namespace reprise {
namespace {

// Three encoder layers (0..2, the last KV source is 2) and three replay layers (3..5), W = 4.
const ModelFacts kDecoder = testing::make_facts(6, 3, 4);

std::vector<LayerRows> layers(ReplayMode mode, int64_t prompt_length, const ModelFacts& facts = kDecoder) {
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
  const ModelFacts shared = testing::make_facts(6, 3, 4, /*replay_layers_own_kv=*/false);
  const std::vector<LayerRows> expected = {{0, 0, 0}, {0, 0, 0}, {0, 19, 0}, {19, 19, 0}, {19, 19, 0}, {19, 19, 0}};
  EXPECT_EQ(layers(ReplayMode::kLastRow, 20, shared), expected);
  EXPECT_EQ(layers(ReplayMode::kExact, 20, shared), expected)
      << "without window KV of their own, layers reach no other row";
  EXPECT_THROW(layers(ReplayMode::kLastRow, 20), std::invalid_argument);
}

TEST(ReplayPlan, OffAndDecodersThatCannotReplayTrimNothing) {
  EXPECT_TRUE(trims_nothing(make_row_plan(ReplayMode::kOff, 1000, kDecoder)));
  EXPECT_TRUE(trims_nothing(make_row_plan(ReplayMode::kBounded, 1000, testing::make_facts(6, 6, 4))));
  EXPECT_TRUE(trims_nothing(make_row_plan(ReplayMode::kExact, 1000, testing::make_facts(6, 0, 4))));
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

std::vector<LayerRows> hit_layers(ReplayMode mode, int64_t prompt_length, int64_t hit, PrefixRebuild rebuild) {
  const auto plan = make_hit_row_plan(mode, prompt_length, hit, rebuild, kDecoder);
  return plan ? plan->layers : std::vector<LayerRows>{};
}

TEST(ReplayPlan, ExactRebuildOfALongSuffix) {
  // Nothing below row 30 is computed by the last source, so it needs no row below the hit; each layer before it W-1 = 3
  // more.
  const std::vector<LayerRows> expected = {{14, 17, 0}, {17, 20, 0}, {20, 30, 0},
                                           {30, 33, 0}, {33, 36, 0}, {36, 39, 0}};
  EXPECT_EQ(hit_layers(ReplayMode::kExact, 40, 20, PrefixRebuild::kExact), expected);
}

TEST(ReplayPlan, ExactRebuildOfAShortSuffixReachesFurtherDown) {
  const std::vector<LayerRows> exact = {{5, 8, 0}, {8, 11, 0}, {11, 14, 0}, {14, 17, 0}, {17, 20, 0}, {20, 23, 0}};
  EXPECT_EQ(hit_layers(ReplayMode::kExact, 24, 20, PrefixRebuild::kExact), exact);
  const std::vector<LayerRows> off = {{2, 5, 0}, {5, 8, 0}, {8, 11, 0}, {11, 14, 0}, {14, 17, 0}, {17, 20, 0}};
  EXPECT_EQ(hit_layers(ReplayMode::kOff, 24, 20, PrefixRebuild::kExact), off);
  const std::vector<LayerRows> bounded = {{11, 14, 0},  {14, 17, 0},  {17, 20, 0},
                                          {20, 20, 20}, {20, 20, 20}, {20, 23, 20}};
  EXPECT_EQ(hit_layers(ReplayMode::kBounded, 24, 20, PrefixRebuild::kExact), bounded);
}

TEST(ReplayPlan, BoundedRebuildStopsAWindowBelowTheHit) {
  const std::vector<LayerRows> expected = {{16, 17, 16}, {17, 20, 16}, {20, 36, 16},
                                           {36, 36, 36}, {36, 36, 36}, {36, 39, 36}};
  EXPECT_EQ(hit_layers(ReplayMode::kBounded, 40, 20, PrefixRebuild::kBounded), expected);
  const std::vector<LayerRows> exact = {{16, 16, 16}, {16, 16, 16}, {16, 16, 16},
                                        {16, 17, 16}, {17, 20, 16}, {20, 23, 16}};
  EXPECT_EQ(hit_layers(ReplayMode::kExact, 24, 20, PrefixRebuild::kBounded), exact);
}

TEST(ReplayPlan, HitsThatSaveNothingAreNotAdopted) {
  EXPECT_TRUE(hit_layers(ReplayMode::kExact, 40, 6, PrefixRebuild::kExact).empty());
  EXPECT_FALSE(hit_layers(ReplayMode::kExact, 40, 7, PrefixRebuild::kExact).empty()) << "row 0 need not run";
  EXPECT_TRUE(hit_layers(ReplayMode::kOff, 40, 18, PrefixRebuild::kExact).empty());
  EXPECT_FALSE(hit_layers(ReplayMode::kOff, 40, 19, PrefixRebuild::kExact).empty());
  EXPECT_TRUE(hit_layers(ReplayMode::kBounded, 40, 4, PrefixRebuild::kBounded).empty());
  EXPECT_FALSE(hit_layers(ReplayMode::kBounded, 40, 5, PrefixRebuild::kBounded).empty());
}

// Which rows each layer must receive, found by following dependencies one by one: the tight answer.
std::vector<int64_t> first_rows_needed(ReplayMode mode, int64_t prompt_length, int64_t hit, const ModelFacts& facts) {
  std::vector<std::set<int64_t>> received(static_cast<size_t>(facts.num_layers()));
  std::vector<std::set<int64_t>> computed(static_cast<size_t>(facts.num_layers()));
  const auto compute = [&](const auto& self, int64_t layer, int64_t row) -> void {
    if (layer < 0 || !computed[static_cast<size_t>(layer)].insert(row).second) return;
    const bool floored = mode == ReplayMode::kBounded && layer >= facts.num_encoder_layers;
    const int64_t floor = floored ? std::max<int64_t>(prompt_length - facts.window(), 0) : 0;
    for (int64_t key = std::max(row - facts.window() + 1, floor); key <= row; ++key) {
      received[static_cast<size_t>(layer)].insert(key);
      self(self, layer - 1, key);
    }
  };
  for (int64_t layer = 0; layer < facts.num_layers(); ++layer) {
    for (int64_t row = 0; row < prompt_length; ++row) {
      bool wanted = row == prompt_length - 1 && layer == facts.num_layers() - 1;  // the row that is sampled
      if (mode == ReplayMode::kOff && row >= hit) wanted = true;                  // off runs every row it did not find
      if (wanted) compute(compute, layer, row);
      // Every new row publishes in every encoder layer, and leaves the window KV that generated rows will read.
      const bool later_reads = row > prompt_length - facts.window();
      if ((layer < facts.num_encoder_layers && row >= hit) || later_reads) {
        received[static_cast<size_t>(layer)].insert(row);
        compute(compute, layer - 1, row);
      }
    }
  }
  std::vector<int64_t> first;
  for (const auto& rows : received) first.push_back(*rows.begin());
  return first;
}

TEST(ReplayPlan, HaloIsTightAgainstFollowingEveryDependency) {
  for (ReplayMode mode : {ReplayMode::kOff, ReplayMode::kExact, ReplayMode::kBounded}) {
    for (int64_t window : {1, 2, 4}) {
      const ModelFacts facts = testing::make_facts(5, 3, window);
      for (int64_t prompt_length : {20, 33}) {
        for (int64_t hit = 1; hit < prompt_length; ++hit) {
          const auto plan = make_hit_row_plan(mode, prompt_length, hit, PrefixRebuild::kExact, facts);
          const std::vector<int64_t> needed = first_rows_needed(mode, prompt_length, hit, facts);
          if (!plan) {
            EXPECT_EQ(needed[0], 0);
            continue;
          }
          for (size_t layer = 0; layer < needed.size(); ++layer) {
            EXPECT_EQ(plan->layers[layer].first_received, needed[layer])
                << "mode " << static_cast<int>(mode) << " W " << window << " T " << prompt_length << " H " << hit
                << " layer " << layer;
          }
        }
      }
    }
  }
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
