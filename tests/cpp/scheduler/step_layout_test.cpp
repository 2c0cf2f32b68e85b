// A step as integers, by hand: no torch is near.
#include "scheduler/step_layout.h"

#include <gtest/gtest.h>

#include "../decoder_facts.h"
#include "scheduler/replay_plan.h"

namespace reprise {
namespace {

using testing::kCompressed;
using testing::kWindow;
using testing::make_facts;
using Runs = std::vector<RowRun>;
using Integers = std::vector<int64_t>;

constexpr int64_t kPage = 4;

// Six layers, three of them the encoder's, W = 4, published at ratio 2.
ModelFacts decoder() {
  ModelFacts facts = make_facts(6, 3, 4);
  for (int64_t layer = 0; layer < 6; ++layer) facts.cache_tensors.push_back({.layer = layer, .group = kWindow});
  facts.cache_tensors.push_back({.kind = 1, .layer = 2, .group = kCompressed, .ratio = 2});
  return facts;
}

// Slot 0 has pages 10, 11, ... and slot 1 pages 20, 21, ... in the window group, 100 more in the compressed one.
BlockTables tables() {
  BlockTables tables(2, 2, 8);
  std::vector<BlockTableUpdate> updates;
  for (const int32_t group : {kWindow, kCompressed}) {
    for (const int32_t slot : {0, 1}) {
      for (int32_t entry = 0; entry < 8; ++entry)
        updates.push_back({group, slot, entry, 100 * group + 10 * (slot + 1) + entry});
    }
  }
  tables.apply(updates);
  return tables;
}

std::vector<int32_t> count_up(int32_t count) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(i + 50);
  return tokens;
}

ScheduledSequence sequence(const std::vector<int32_t>& tokens, int32_t slot, int64_t start, int32_t rows) {
  return {.id = slot,
          .state_slot = slot,
          .tokens = tokens,
          .prompt_length = static_cast<int64_t>(tokens.size()),
          .start = start,
          .num_rows = rows,
          .first_logits_row = rows - 1};
}

TEST(StepLayout, ABatchWithoutPlansIsOneSet) {
  const auto a = count_up(9);
  const auto b = count_up(4);
  StepPlan plan{.sequences = {sequence(a, 1, 6, 3), sequence(b, 0, 3, 1)}, .num_rows = 4};
  StepLayout layout;
  lay_out(plan, decoder(), tables(), kPage, {}, layout);
  ASSERT_EQ(layout.num_sets, 1u);
  EXPECT_EQ(layout.token_ids, (Integers{56, 57, 58, 53}));
  EXPECT_EQ(layout.state_slots, (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(layout.set_of_layer, std::vector<int32_t>(6, 0));
  const RowSetLayout& batch = layout.sets[0];
  EXPECT_EQ(batch.positions, (Integers{6, 7, 8, 3}));
  EXPECT_EQ(batch.sequence_index, (std::vector<int32_t>{0, 0, 0, 1}));
  EXPECT_EQ(batch.sequence_starts, (Integers{0, 3, 4}));
  EXPECT_EQ(batch.window_starts[kWindow], (Integers{3, 4, 5, 0}));
  EXPECT_TRUE(batch.window_starts[kCompressed].empty());
  // Page * 4 + position % 4.
  EXPECT_EQ(batch.slots[0], (Integers{21 * 4 + 2, 21 * 4 + 3, 22 * 4, 10 * 4 + 3}));
  // Ratio 2: two cells a page, written by the rows at odd positions.
  EXPECT_EQ(batch.slots[1], (Integers{0, 121 * 2 + 1, 0, 110 * 2 + 1}));
  EXPECT_FALSE(batch.is_replay);
  EXPECT_EQ(layout.output_rows.runs(), (Runs{{2, 0, 2}})) << "the last row of one and the only row of the other";
  EXPECT_EQ(layout.logits_rows.runs(), (Runs{{0, 0, 2}}));
}

// A prompt of 20 under exact replay beside a decode row: each layer's rows are runs of those of the one before.
TEST(StepLayout, NarrowerSetsAreRunsOfTheSetBefore) {
  const auto prompt = count_up(20);
  const auto other = count_up(5);
  const ModelFacts facts = decoder();
  StepPlan plan{.sequences = {sequence(prompt, 0, 8, 12), sequence(other, 1, 4, 1)}, .num_rows = 13};
  plan.sequences[0].row_plan = std::make_shared<RowPlan>(make_row_plan(ReplayMode::kExact, 20, facts));
  StepLayout layout;
  lay_out(plan, facts, tables(), kPage, {}, layout);
  // First rows computed: 10, 13, 16, 19 from layer 2 on.
  ASSERT_EQ(layout.num_sets, 5u);
  EXPECT_EQ(layout.set_of_layer, (std::vector<int32_t>{0, 0, 1, 2, 3, 4}));
  EXPECT_EQ(layout.sets[1].kept.runs(), (Runs{{2, 0, 11}})) << "rows 10..19 and the decode row";
  EXPECT_EQ(layout.sets[2].kept.runs(), (Runs{{3, 0, 8}}));
  EXPECT_EQ(layout.sets[4].kept.runs(), (Runs{{3, 0, 2}}));
  EXPECT_EQ(layout.sets[4].positions, (Integers{19, 4}));
  EXPECT_EQ(layout.sets[4].sequence_starts, (Integers{0, 1, 2}));
  EXPECT_TRUE(layout.sets[0].writes[1]);
  for (const size_t set : {1, 2, 3, 4}) {
    EXPECT_TRUE(layout.sets[set].is_replay);
    EXPECT_EQ(layout.sets[set].writes[0], set < 4) << "no layer receives what the last one computes";
    EXPECT_FALSE(layout.sets[set].writes[1]) << "past the last source nobody publishes";
  }
  EXPECT_EQ(layout.output_rows.runs(), (Runs{{0, 0, 2}}));
}

TEST(StepLayout, AWindowFloorAloneMakesASetOfTheSameRows) {
  const auto prompt = count_up(4);
  const ModelFacts facts = decoder();
  StepPlan plan{.sequences = {sequence(prompt, 0, 2, 2)}, .num_rows = 2};
  auto rows = std::make_shared<RowPlan>();
  rows->layers.resize(6);
  rows->layers[4].window_floor = rows->layers[5].window_floor = 2;
  plan.sequences[0].row_plan = rows;
  StepLayout layout;
  lay_out(plan, facts, tables(), kPage, {}, layout);
  ASSERT_EQ(layout.num_sets, 2u);
  EXPECT_EQ(layout.set_of_layer, (std::vector<int32_t>{0, 0, 0, 0, 1, 1}));
  EXPECT_EQ(layout.sets[1].kept.runs(), (Runs{{0, 0, 2}}));
  EXPECT_EQ(layout.sets[0].window_starts[kWindow], (Integers{0, 0}));
  EXPECT_EQ(layout.sets[1].window_starts[kWindow], (Integers{2, 2}));
}

TEST(StepLayout, ChunksBelowEveryBoundLeaveReplayLayersNothing) {
  const auto prompt = count_up(30);
  const ModelFacts facts = decoder();
  StepPlan plan{.sequences = {sequence(prompt, 0, 4, 8)}, .num_rows = 8};
  plan.sequences[0].first_logits_row = 8;
  plan.sequences[0].row_plan = std::make_shared<RowPlan>(make_row_plan(ReplayMode::kBounded, 30, facts));
  StepLayout layout;
  lay_out(plan, facts, tables(), kPage, {}, layout);
  EXPECT_EQ(layout.sets[static_cast<size_t>(layout.set_of_layer[2])].num_rows(), 0);
  EXPECT_EQ(layout.output_rows.num_rows(), 0);
  EXPECT_EQ(layout.logits_rows.num_rows(), 0);
}

TEST(StepLayout, RowsBelowAHitWriteThePadCellOfTheSharedGroupOnly) {
  const auto prompt = count_up(12);
  StepPlan plan{.sequences = {sequence(prompt, 0, 4, 8)}, .num_rows = 8};
  plan.sequences[0].publish_from = 8;
  StepLayout layout;
  lay_out(plan, decoder(), tables(), kPage, {}, layout);
  const RowSetLayout& batch = layout.sets[0];
  EXPECT_EQ(batch.slots[0], (Integers{44, 45, 46, 47, 48, 49, 50, 51}));
  EXPECT_EQ(batch.slots[1], (Integers{0, 0, 0, 0, 0, 112 * 2, 0, 112 * 2 + 1}));
}

TEST(StepLayout, HiddenRowsOfEveryRowBesideLogitsOfTheLast) {
  const auto a = count_up(6);
  const auto b = count_up(3);
  StepPlan plan{.sequences = {sequence(a, 0, 3, 3), sequence(b, 1, 0, 3)}, .num_rows = 6};
  StepLayout layout;
  lay_out(plan, decoder(), tables(), kPage, {true, false}, layout);
  EXPECT_EQ(layout.output_rows.runs(), (Runs{{0, 0, 3}, {5, 3, 1}}));
  EXPECT_EQ(layout.logits_rows.runs(), (Runs{{2, 0, 2}}));
}

// A smaller step after a larger one: what the larger one left is not part of it.
TEST(StepLayout, MemoryOfAnEarlierLayoutServesAgain) {
  const auto prompt = count_up(20);
  const ModelFacts facts = decoder();
  StepPlan larger{.sequences = {sequence(prompt, 0, 0, 20)}, .num_rows = 20};
  larger.sequences[0].row_plan = std::make_shared<RowPlan>(make_row_plan(ReplayMode::kExact, 20, facts));
  StepPlan smaller{.sequences = {sequence(prompt, 0, 19, 1)}, .num_rows = 1};
  StepLayout layout;
  lay_out(larger, facts, tables(), kPage, {}, layout);
  lay_out(smaller, facts, tables(), kPage, {}, layout);
  EXPECT_EQ(layout.num_sets, 1u);
  EXPECT_EQ(layout.sets[0].positions, Integers{19});
  EXPECT_EQ(layout.sets[0].slots[0], Integers{14 * 4 + 3});
  EXPECT_EQ(layout.set_of_layer, std::vector<int32_t>(6, 0));
  EXPECT_TRUE(layout.sets[0].kept.runs().empty());
}

}  // namespace
}  // namespace reprise
