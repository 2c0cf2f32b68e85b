// Plans made by hand: what does not fit is refused before anything is applied.
#include "reprise/model_state.h"

#include <gtest/gtest.h>

#include <limits>

#include "engine_harness.h"

namespace reprise::testing {
namespace {

class ModelStateTest : public ::testing::Test {
 protected:
  ModelStateTest() {
    const EngineConfig config = tiny_config("v41-tiny-engram");
    state_.emplace(ModelStateBuilder(load_model_config(data_path("v41-tiny-engram")))
                       .max_num_seqs(2)
                       .max_model_len(64)
                       .page_size(4)
                       .engram_vocabulary(config.engram_vocabulary)
                       .build());
    plan_.sequences.push_back({.id = 1, .tokens = tokens_, .prompt_length = 12, .start = 8, .num_rows = 4});
    plan_.sequences[0].first_logits_row = 3;
    plan_.block_table_updates = {{.group = CacheGroup::kWindow, .index = 2, .page = 5}};
    plan_.num_rows = 4;
  }

  void expect_refused(const char* what) {
    EXPECT_THROW(state_->prepare(plan_), std::invalid_argument) << what;
    // Nothing was applied: the page of position 8 is still the pad page.
    StepPlan good;
    good.sequences.push_back({.id = 2, .tokens = tokens_, .prompt_length = 12, .start = 8, .num_rows = 1});
    good.num_rows = 1;
    EXPECT_EQ(state_->prepare(good).forward_context->attention.window_slots.item().toLong(), 0) << what;
  }

  std::vector<int32_t> tokens_ = std::vector<int32_t>(12, 5);
  std::optional<ModelState> state_;
  StepPlan plan_;
};

TEST_F(ModelStateTest, PreparesAPlanThatFits) {
  const StepInputs inputs = state_->prepare(plan_);
  const auto& attention = inputs.forward_context->attention;
  EXPECT_EQ(attention.positions[0].item().toLong(), 8);
  EXPECT_EQ(attention.window_starts[0].item().toLong(), 1) << "W = 8: positions 1 to 8";
  EXPECT_EQ(attention.window_slots[0].item().toLong(), 5 * 4);
  EXPECT_EQ(inputs.output_rows.size(0), 1);
  EXPECT_EQ(inputs.output_rows[0].item().toLong(), 3);
}

// Preparing into earlier inputs gives what fresh ones hold, and takes nothing from those who kept a part.
TEST_F(ModelStateTest, PreparesIntoEarlierInputs) {
  StepPlan shorter = plan_;
  shorter.sequences[0].start = 3;
  shorter.sequences[0].num_rows = 2;
  shorter.sequences[0].first_logits_row = 0;
  shorter.num_rows = 2;
  StepInputs inputs;
  state_->prepare(plan_, {}, inputs);
  const void* positions = inputs.forward_context->attention.positions.const_data_ptr();
  state_->prepare(shorter, {}, inputs);
  EXPECT_EQ(inputs.forward_context->attention.positions.const_data_ptr(), positions) << "nobody else had it";
  const StepInputs kept = inputs;
  const at::Tensor kept_slots = kept.forward_context->attention.published.at(0).slots.clone();
  state_->prepare(plan_, {}, inputs);
  for (const auto& [got, plan] : {std::pair{&kept, &shorter}, {&inputs, &plan_}}) {
    const StepInputs want = state_->prepare(*plan);
    EXPECT_TRUE(got->token_ids.equal(want.token_ids));
    EXPECT_TRUE(got->output_rows.equal(want.output_rows));
    EXPECT_TRUE(got->logits_rows.equal(want.logits_rows));
    ASSERT_EQ(got->engram_rows.size(), want.engram_rows.size());
    for (size_t i = 0; i < want.engram_rows.size(); ++i) EXPECT_TRUE(got->engram_rows[i].equal(want.engram_rows[i]));
    const auto& a = got->forward_context->attention;
    const auto& b = want.forward_context->attention;
    EXPECT_EQ(got->forward_context->num_rows, plan->num_rows);
    for (const auto field :
         {&AttentionMetadata::positions, &AttentionMetadata::sequence_index, &AttentionMetadata::sequence_starts,
          &AttentionMetadata::state_slots, &AttentionMetadata::window_starts, &AttentionMetadata::window_slots}) {
      EXPECT_TRUE((a.*field).equal(b.*field));
    }
    EXPECT_TRUE(a.window_rope.cos.equal(b.window_rope.cos));
    EXPECT_TRUE(a.compressed_rope.sin.equal(b.compressed_rope.sin));
    ASSERT_EQ(a.published.size(), b.published.size());
    for (size_t i = 0; i < a.published.size(); ++i) {
      EXPECT_EQ(a.published[i].ratio, b.published[i].ratio);
      EXPECT_TRUE(a.published[i].slots.equal(b.published[i].slots));
      EXPECT_TRUE(a.published[i].rope.cos.equal(b.published[i].rope.cos));
    }
  }
  EXPECT_TRUE(kept.forward_context->attention.published.at(0).slots.equal(kept_slots));
}

TEST_F(ModelStateTest, RefusesRowsBeyondTheTokens) {
  plan_.sequences[0].start = 9;
  expect_refused("beyond");
  plan_.sequences[0].start = std::numeric_limits<int64_t>::max();
  expect_refused("overflow");
  plan_.sequences[0].start = -1;
  expect_refused("negative");
}

TEST_F(ModelStateTest, RefusesIdsThatOnlyTheLookbackReads) {
  tokens_[7] = 2'000'000'000;
  EXPECT_THROW(state_->prepare(plan_), std::invalid_argument);
  tokens_[7] = -3;
  EXPECT_THROW(state_->prepare(plan_), std::invalid_argument);
}

TEST_F(ModelStateTest, RefusesOutputsThatNobodyComputes) {
  plan_.sequences[0].first_logits_row = -1;
  expect_refused("negative");
  auto rows = std::make_shared<RowPlan>();
  rows->layers.resize(10);
  rows->layers[9].first_computed = 11;
  plan_.sequences[0].row_plan = rows;
  plan_.sequences[0].first_logits_row = 2;
  expect_refused("trimmed");
  plan_.sequences[0].first_logits_row = 3;
  EXPECT_THROW(state_->prepare(plan_, {true}), std::invalid_argument) << "hidden states of every row";
  EXPECT_NO_THROW(state_->prepare(plan_));
}

TEST_F(ModelStateTest, RefusesBlockTableEntriesOutside) {
  plan_.block_table_updates[0].index = 16;
  expect_refused("index");
  plan_.block_table_updates[0] = {.group = CacheGroup::kWindow, .state_slot = 2, .page = 1};
  expect_refused("slot");
  plan_.block_table_updates[0] = {.group = CacheGroup::kWindow, .page = -1};
  expect_refused("page");
}

}  // namespace
}  // namespace reprise::testing
