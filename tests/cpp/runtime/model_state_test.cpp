// Plans made by hand: what does not fit is refused before anything is applied.
#include "reprise/model_state.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "engine_harness.h"

namespace reprise::testing {
namespace {

class ModelStateTest : public ::testing::Test {
 protected:
  ModelStateTest() {
    const EngineConfig config = tiny_config("v41-tiny-engram");
    state_.emplace(ModelStateBuilder(make_model_facts(load_model_config(data_path("v41-tiny-engram"))))
                       .max_num_seqs(2)
                       .max_model_len(64)
                       .page_size(4)
                       .engram_vocabulary(config.engram_vocabulary)
                       .build());
    plan_.sequences.push_back({.id = 1, .tokens = tokens_, .prompt_length = 12, .start = 8, .num_rows = 4});
    plan_.sequences[0].first_logits_row = 3;
    plan_.block_table_updates = {{.index = 2, .page = 5}};
    plan_.num_rows = 4;
  }

  void expect_refused(const char* what) {
    EXPECT_THROW(state_->prepare(plan_), std::invalid_argument) << what;
    // Nothing was applied: the page of position 8 is still the pad page.
    StepPlan good;
    good.sequences.push_back({.id = 2, .tokens = tokens_, .prompt_length = 12, .start = 8, .num_rows = 1});
    good.num_rows = 1;
    EXPECT_EQ(state_->prepare(good).forward_context()->attention.cells[0].slots.item().toLong(), 0) << what;
  }

  std::vector<int32_t> tokens_ = std::vector<int32_t>(12, 5);
  std::optional<ModelState> state_;
  StepPlan plan_;
};

TEST_F(ModelStateTest, PreparesAPlanThatFits) {
  const StepInputs inputs = state_->prepare(plan_);
  const auto& attention = inputs.forward_context()->attention;
  EXPECT_EQ(attention.positions[0].item().toLong(), 8);
  EXPECT_EQ(attention.groups[0].window_starts[0].item().toLong(), 1) << "W = 8: positions 1 to 8";
  EXPECT_EQ(attention.cells[0].slots[0].item().toLong(), 5 * 4);
  EXPECT_EQ(inputs.output_rows.runs(), (std::vector<RowRun>{{3, 0, 1}}));
}

void expect_equal(const ForwardContext& got, const ForwardContext& want) {
  EXPECT_EQ(got.num_rows, want.num_rows);
  EXPECT_EQ(got.num_padding_rows, want.num_padding_rows);
  EXPECT_EQ(got.is_replay, want.is_replay);
  const auto& a = got.attention;
  const auto& b = want.attention;
  for (const auto field : {&AttentionMetadata::positions, &AttentionMetadata::sequence_index,
                           &AttentionMetadata::sequence_starts, &AttentionMetadata::state_slots}) {
    EXPECT_TRUE((a.*field).equal(b.*field));
  }
  ASSERT_EQ(a.groups.size(), b.groups.size());
  EXPECT_TRUE(a.groups[0].window_starts.equal(b.groups[0].window_starts));
  ASSERT_EQ(a.ropes.size(), b.ropes.size());
  for (size_t i = 0; i < a.ropes.size(); ++i) {
    EXPECT_TRUE(a.ropes[i].cos.equal(b.ropes[i].cos));
    EXPECT_TRUE(a.ropes[i].sin.equal(b.ropes[i].sin));
  }
  ASSERT_EQ(a.cells.size(), b.cells.size());
  for (size_t i = 0; i < a.cells.size(); ++i) {
    ASSERT_EQ(a.cells[i].slots.defined(), b.cells[i].slots.defined());
    if (!a.cells[i].slots.defined()) continue;
    EXPECT_TRUE(a.cells[i].slots.equal(b.cells[i].slots));
    EXPECT_TRUE(!b.cells[i].rope.cos.defined() || a.cells[i].rope.cos.equal(b.cells[i].rope.cos));
  }
}

void expect_equal(const StepInputs& got, const StepInputs& want) {
  EXPECT_TRUE(got.token_ids.equal(want.token_ids));
  EXPECT_EQ(got.output_rows, want.output_rows);
  EXPECT_EQ(got.logits_rows, want.logits_rows);
  ASSERT_EQ(got.engram_rows.size(), want.engram_rows.size());
  for (size_t i = 0; i < want.engram_rows.size(); ++i) EXPECT_TRUE(got.engram_rows[i].equal(want.engram_rows[i]));
  EXPECT_EQ(got.set_of_layer, want.set_of_layer);
  ASSERT_EQ(got.sets.size(), want.sets.size());
  for (size_t set = 0; set < want.sets.size(); ++set) {
    EXPECT_EQ(got.sets[set].kept, want.sets[set].kept) << set;
    expect_equal(*got.sets[set].forward_context, *want.sets[set].forward_context);
  }
}

// Preparing into earlier inputs gives what fresh ones hold, and takes nothing from those who kept a part.
TEST_F(ModelStateTest, PreparesIntoEarlierInputs) {
  std::iota(tokens_.begin(), tokens_.end(), 5);
  StepPlan shorter = plan_;
  shorter.sequences[0].start = 3;
  shorter.sequences[0].num_rows = 2;
  shorter.sequences[0].first_logits_row = 0;
  shorter.num_rows = 2;
  StepInputs inputs;
  state_->prepare(plan_, {}, inputs);
  const void* positions = inputs.forward_context()->attention.positions.const_data_ptr();
  auto rows = std::make_shared<RowPlan>();
  rows->layers.resize(10);
  rows->layers[9].first_computed = 4;
  shorter.sequences[0].row_plan = rows;
  shorter.sequences[0].first_logits_row = 1;
  state_->prepare(shorter, {}, inputs);
  EXPECT_EQ(inputs.forward_context()->attention.positions.const_data_ptr(), positions) << "nobody else had it";
  state_->prepare(plan_, {}, inputs);
  EXPECT_EQ(inputs.forward_context()->attention.positions.const_data_ptr(), positions) << "grown within its memory";
  expect_equal(inputs, state_->prepare(plan_));
  state_->prepare(shorter, {}, inputs);
  const StepInputs kept = inputs;
  const at::Tensor kept_slots = kept.forward_context()->attention.cells.at(1).slots.clone();
  state_->prepare(plan_, {}, inputs);
  expect_equal(inputs, state_->prepare(plan_));
  expect_equal(kept, state_->prepare(shorter));
  EXPECT_TRUE(kept.forward_context()->attention.cells.at(1).slots.equal(kept_slots));
}

// What the caller has put in their place is let go of where it cannot serve.
TEST_F(ModelStateTest, PreparesIntoInputsThatTheCallerChanged) {
  StepInputs inputs;
  {
    const c10::InferenceMode inference;
    state_->prepare(plan_, {}, inputs);
  }
  StepPlan shorter = plan_;
  shorter.num_rows = shorter.sequences[0].num_rows = 2;
  shorter.sequences[0].first_logits_row = 1;
  state_->prepare(shorter, {}, inputs);
  expect_equal(inputs, state_->prepare(shorter));
  inputs.token_ids = at::zeros({1}, at::kLong).expand({2});
  std::vector<int64_t> outside(4, -1);
  inputs.forward_context()->attention.positions = at::from_blob(outside.data(), {4}, at::kLong);
  inputs.forward_context()->num_padding_rows = 1;
  state_->prepare(shorter, {}, inputs);
  expect_equal(inputs, state_->prepare(shorter));
  EXPECT_EQ(outside, std::vector<int64_t>(4, -1));
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
  plan_.block_table_updates[0] = {.state_slot = 2, .page = 1};
  expect_refused("slot");
  plan_.block_table_updates[0] = {.page = -1};
  expect_refused("page");
}

}  // namespace
}  // namespace reprise::testing
