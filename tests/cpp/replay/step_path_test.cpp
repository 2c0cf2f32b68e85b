// The choice of how a step runs, case by case.
#include "replay/step_path.h"

#include <gtest/gtest.h>

#include <vector>

namespace reprise {
namespace {

const std::vector<int64_t> kBuckets{1, 4, 16};

StepFacts facts(int64_t num_rows, int64_t num_kept_rows, std::span<const int64_t> buckets = kBuckets) {
  return {.num_rows = num_rows, .num_kept_rows = num_kept_rows, .buckets = buckets};
}

TEST(StepPath, TakesTheSmallestBucketThatHoldsTheRows) {
  EXPECT_EQ(bucket_for(1, kBuckets), 1);
  EXPECT_EQ(bucket_for(2, kBuckets), 4);
  EXPECT_EQ(bucket_for(4, kBuckets), 4);
  EXPECT_EQ(bucket_for(16, kBuckets), 16);
  EXPECT_EQ(bucket_for(17, kBuckets), 0);
  EXPECT_EQ(bucket_for(1, {}), 0);
}

TEST(StepPath, UntrimmedStepsRunAsAWholeBatchInAGraphWhereOneHoldsThem) {
  EXPECT_EQ(choose_step_path(facts(3, 3)), StepPath::kWholeBatchInGraph);
  EXPECT_EQ(choose_step_path(facts(16, 16)), StepPath::kWholeBatchInGraph);
  EXPECT_EQ(choose_step_path(facts(17, 17)), StepPath::kWholeBatch);
}

TEST(StepPath, TrimmingStepsNeverRunAsAWholeBatch) {
  // The batch would fit a graph; the kept rows have one of their own.
  EXPECT_EQ(choose_step_path(facts(9, 8)), StepPath::kKeptRowsInGraph);
  EXPECT_EQ(choose_step_path(facts(2048, 8)), StepPath::kKeptRowsInGraph);
  EXPECT_EQ(choose_step_path(facts(2048, 128)), StepPath::kKeptRows);
}

TEST(StepPath, WithoutGraphsEverythingRunsEagerly) {
  EXPECT_EQ(choose_step_path(facts(3, 3, {})), StepPath::kWholeBatch);
  EXPECT_EQ(choose_step_path(facts(9, 8, {})), StepPath::kKeptRows);
}

TEST(StepPath, WhatNarrowsOnTheWayRunsLayerByLayer) {
  StepFacts exact = facts(9, 8);
  exact.replay_narrows = true;
  EXPECT_EQ(choose_step_path(exact), StepPath::kKeptRows);
  StepFacts short_exact = facts(9, 9);  // within the halo: only later layers trim
  short_exact.replay_narrows = true;
  EXPECT_EQ(choose_step_path(short_exact), StepPath::kWholeBatch);
}

TEST(StepPath, ABatchThatTheEncoderNarrowsHasNoGraph) {
  StepFacts rebuild = facts(9, 9);
  rebuild.encoder_narrows = true;
  EXPECT_EQ(choose_step_path(rebuild), StepPath::kWholeBatch);
  rebuild.num_kept_rows = 8;  // its replay layers have
  EXPECT_EQ(choose_step_path(rebuild), StepPath::kKeptRowsInGraph);
}

TEST(StepPath, NoKeptRowsNoGraph) { EXPECT_EQ(choose_step_path(facts(9, 0)), StepPath::kKeptRows); }

}  // namespace
}  // namespace reprise
