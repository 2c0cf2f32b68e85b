// Buffers that keep their addresses, and take a step without an allocation.
#include "graphs/fixed_rows.h"

#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <vector>

#include "../allocations.h"
#include "engine_harness.h"
#include "reprise/model_state.h"

namespace reprise::testing {
namespace {

void expect_values(const at::Tensor& tensor, const std::vector<int64_t>& want) {
  ASSERT_EQ(tensor.size(0), static_cast<int64_t>(want.size()));
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(tensor[static_cast<int64_t>(i)].item<int64_t>(), want[i]) << i;
}

TEST(FixedContext, TakesAStepInPlaceAndPadsIt) {
  const c10::InferenceMode inference;
  const ModelFacts facts = make_model_facts(load_model_config(data_path("v41-tiny")));
  ModelState state = ModelStateBuilder(facts).max_num_seqs(4).max_model_len(64).page_size(4).build();
  const std::vector<int32_t> tokens{5, 6, 7, 8, 9, 10};
  StepPlan longer{.num_rows = 6};
  longer.sequences.push_back(
      {.id = 1, .state_slot = 3, .tokens = tokens, .prompt_length = 6, .start = 0, .num_rows = 6});
  for (const int32_t group : {0, 1}) {
    for (const int32_t slot : {1, 2, 3}) {
      for (const int32_t index : {0, 1}) longer.block_table_updates.push_back({group, slot, index, 2 * slot + index});
    }
  }
  StepPlan plan{.num_rows = 3};
  plan.sequences.push_back({.id = 1, .state_slot = 2, .tokens = tokens, .prompt_length = 4, .start = 1, .num_rows = 2});
  plan.sequences.push_back({.id = 2, .state_slot = 1, .tokens = tokens, .prompt_length = 4, .start = 3, .num_rows = 1});
  const StepInputs before = state.prepare(longer);
  const StepInputs inputs = state.prepare(plan);
  FixedContext fixed(*inputs.forward_context(), 8, 4);
  fixed.set(*before.forward_context());  // what a longer step left must go
  const auto& attention = fixed.context()->attention;
  const at::Tensor positions = attention.positions;
  const void* slots = attention.cells.at(2).slots.const_data_ptr();

  const int64_t count = num_allocations();
  EXPECT_GT(count, 0);
  fixed.set(*inputs.forward_context());
  EXPECT_EQ(num_allocations(), count);

  EXPECT_TRUE(attention.positions.is_same(positions));
  EXPECT_EQ(attention.cells.at(2).slots.const_data_ptr(), slots);
  EXPECT_EQ(fixed.context()->num_rows, 8);
  EXPECT_EQ(fixed.context()->num_padding_rows, 5);
  expect_values(attention.positions, {1, 2, 3, 0, 0, 0, 0, 0});
  expect_values(attention.sequence_index, {0, 0, 1, -1, -1, -1, -1, -1});
  expect_values(attention.sequence_starts, {0, 2, 3, 3, 3});
  expect_values(attention.state_slots, {2, 1, 0, 0});
  expect_values(attention.groups[0].window_starts, {0, 0, 0, 0, 0, 0, 0, 0});
  // Page * 4 + position % 4; state slot 2 has page 4 first, slot 1 page 2.
  expect_values(attention.cells[0].slots, {17, 18, 11, 0, 0, 0, 0, 0});
  // Ratio 2, two cells a page: positions 1 and 3 complete a group.
  ASSERT_EQ(facts.cells.at(2).ratio, 2);
  expect_values(attention.cells.at(2).slots, {8, 0, 5, 0, 0, 0, 0, 0});
}

}  // namespace
}  // namespace reprise::testing
