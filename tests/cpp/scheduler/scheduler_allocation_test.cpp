#include <gtest/gtest.h>

#include "../allocations.h"
#include "../decoder_facts.h"
#include "scheduler/scheduler.h"

namespace reprise {
namespace {

TEST(SchedulerAllocation, DecodeStepsAllocateNothing) {
  for (bool prefix_caching : {false, true}) {
    SchedulerConfig config;
    config.model = testing::make_facts(6, 3, 16);
    config.max_num_seqs = 32;
    config.max_num_batched_tokens = 512;
    config.max_model_len = 1000;
    config.page_size = 8;
    config.num_pages = {500, 4000};
    config.enable_prefix_caching = prefix_caching;
    Scheduler scheduler(config);
    std::vector<SequenceResult> results;
    results.reserve(32);
    for (RequestId id = 0; id < 32; ++id) {
      SequenceRequest request;
      request.id = id;
      request.prompt.assign(static_cast<size_t>(20 + id), static_cast<int32_t>(id));
      request.max_tokens = 500;
      scheduler.add(std::move(request));
    }
    const auto step = [&] {
      const StepPlan& plan = scheduler.plan();
      results.clear();
      for (const ScheduledSequence& s : plan.sequences) {
        if (s.samples) results.push_back({s.id, 7, false});
      }
      scheduler.commit(results);
      return plan.num_rows;
    };
    for (int i = 0; i < 20; ++i) step();
    const int64_t before = testing::num_allocations();
    for (int i = 0; i < 100; ++i) ASSERT_EQ(step(), 32);  // pages fill, blocks complete, windows move on
    EXPECT_EQ(testing::num_allocations(), before) << "prefix caching " << prefix_caching;
  }
}

// A request that waits for room behind a prefix hit: while the cache stays as it is, nothing is looked up or planned
// for it again.
TEST(SchedulerAllocation, AWaitingHeadWithAHitCostsNothingAStep) {
  SchedulerConfig config;
  config.model = testing::make_facts(6, 3, 4);
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 512;
  config.max_model_len = 400;
  config.page_size = 8;
  config.num_pages = {500, 1 + 60};
  config.enable_prefix_caching = true;
  Scheduler scheduler(config);
  std::vector<int32_t> prompt(200);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i);
  const auto add = [&](RequestId id, std::vector<int32_t> tokens, int64_t max_tokens) {
    SequenceRequest request;
    request.id = id;
    request.prompt = std::move(tokens);
    request.max_tokens = max_tokens;
    scheduler.add(std::move(request));
  };
  std::vector<SequenceResult> results;
  results.reserve(8);
  const auto step = [&](bool finish) {
    results.clear();
    for (const ScheduledSequence& s : scheduler.plan().sequences) {
      if (s.samples) results.push_back({s.id, 7, finish});
    }
    scheduler.commit(results);
  };
  add(1, prompt, 1);
  step(/*finish=*/true);  // leaves its blocks in the cache
  std::vector<int32_t> other(288, 3);
  add(2, std::move(other), 100);
  step(false);
  // The hit of 24 blocks does not make room for 49 pages beside the 36 of the one that runs.
  prompt.resize(390, 5);
  add(3, std::move(prompt), 5);
  for (int i = 0; i < 3; ++i) step(false);
  ASSERT_EQ(scheduler.num_waiting(), 1);
  const int64_t before = testing::num_allocations();
  for (int i = 0; i < 4; ++i) step(false);  // within a page: the cache stays as it is
  EXPECT_EQ(testing::num_allocations(), before);
  EXPECT_EQ(scheduler.num_waiting(), 1);
}

}  // namespace
}  // namespace reprise
