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

}  // namespace
}  // namespace reprise
