#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "scheduler_harness.h"

namespace reprise {
namespace {

using testing::FakeModel;
using testing::Harness;
using testing::make_prompt;

using testing::kCompressed;
using testing::kWindow;
using testing::make_facts;

SchedulerConfig roomy(int64_t page_size = 4) {
  SchedulerConfig config;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 8;
  config.max_model_len = 1000;
  config.page_size = page_size;
  config.num_pages = {200, 400};
  return config;
}

FakeModel small_model(int64_t window = 4) { return FakeModel::make(6, 3, window); }

std::string refusal(Scheduler& scheduler, SequenceRequest request) {
  try {
    scheduler.add(std::move(request));
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(Scheduler, ARequestRunsInChunksAndThenOneRowAStep) {
  Harness harness(small_model(), roomy());
  const RequestId id = harness.submit(make_prompt(19), 3);
  std::vector<std::pair<int64_t, int32_t>> runs;
  while (harness.scheduler.has_unfinished()) {
    const StepPlan& plan = harness.step();
    ASSERT_EQ(plan.sequences.size(), 1u);
    runs.emplace_back(plan.sequences[0].start, plan.sequences[0].num_rows);
  }
  EXPECT_EQ(runs, (std::vector<std::pair<int64_t, int32_t>>{{0, 8}, {8, 8}, {16, 3}, {19, 1}, {20, 1}}));
  EXPECT_EQ(harness.requests[id].generated, harness.alone(harness.requests[id].request));
  harness.expect_all_free();
}

TEST(Scheduler, AnEmptySchedulerPlansNothing) {
  Harness harness(small_model(), roomy());
  EXPECT_TRUE(harness.step().sequences.empty());
  EXPECT_EQ(harness.scheduler.plan().num_rows, 0);
}

TEST(Scheduler, MaxTokensZeroOneAndTwo) {
  Harness harness(small_model(), roomy());
  const RequestId none = harness.submit(make_prompt(5), 0);
  const RequestId one = harness.submit(make_prompt(5), 1);
  const RequestId two = harness.submit(make_prompt(5), 2);
  const StepPlan& plan = harness.scheduler.plan();
  EXPECT_FALSE(plan.sequences[0].samples);
  EXPECT_EQ(plan.sequences[0].first_logits_row, 5) << "nothing is sampled, no logits are read";
  EXPECT_EQ(plan.sequences[1].num_rows, 3) << "the budget of 8 rows ends inside the second prompt";
  harness.run_all();
  EXPECT_EQ(harness.requests[none].generated.size(), 0u);
  EXPECT_EQ(harness.requests[one].generated.size(), 1u);
  EXPECT_EQ(harness.requests[two].generated.size(), 2u);
}

TEST(Scheduler, DecodeRowsComeBeforePromptChunks) {
  Harness harness(small_model(), roomy());
  const RequestId running = harness.submit(make_prompt(3), 20);
  harness.step();
  const RequestId prompt = harness.submit(make_prompt(100, 1), 1);
  for (int i = 0; i < 5; ++i) {
    const StepPlan& plan = harness.step();
    ASSERT_EQ(plan.sequences.size(), 2u);
    EXPECT_EQ(plan.sequences[0].id, running);
    EXPECT_EQ(plan.sequences[1].id, prompt);
    EXPECT_EQ(plan.sequences[1].num_rows, 7);
  }
  EXPECT_EQ(harness.requests[running].generated.size(), 6u) << "the long prompt held nobody up";
  harness.run_all();
}

TEST(Scheduler, ALastChunkOfOneTokenIsPrefill) {
  for (int64_t prompt_length : {9, 17}) {
    Harness harness(small_model(), roomy());
    harness.submit(make_prompt(prompt_length), 2);
    while (harness.scheduler.plan().sequences[0].start < prompt_length - 1) harness.step();
    const ScheduledSequence& last = harness.scheduler.plan().sequences[0];
    EXPECT_EQ(last.num_rows, 1);
    EXPECT_TRUE(last.samples);
    ASSERT_NE(last.row_plan, nullptr) << "it runs under the prompt's plan";
    EXPECT_EQ(last.row_plan->layers.back().first_computed, prompt_length - 1);
    harness.run_all();
  }
}

TEST(Scheduler, EveryChunkSizeGivesTheSameTokens) {
  const int64_t window = 4;
  for (ReplayMode mode : {ReplayMode::kOff, ReplayMode::kBounded, ReplayMode::kExact}) {
    for (int64_t chunk : {1, 3, 4, 5, 7, 8, 64}) {
      for (int64_t prompt_length : {1, 2, 3, 4, 5, 9, 13, 2 * static_cast<int>(chunk) + 1}) {
        SchedulerConfig config = roomy();
        config.max_num_batched_tokens = chunk;
        Harness harness(small_model(window), config);
        const RequestId id = harness.submit(make_prompt(prompt_length), 2 * window, mode);
        harness.run_all();
        EXPECT_EQ(harness.requests[id].generated, harness.alone(harness.requests[id].request))
            << chunk << " " << prompt_length;
      }
    }
  }
}

TEST(Scheduler, ChunksBelowEveryBoundRunNoReplayLayer) {
  Harness harness(small_model(), roomy());
  harness.submit(make_prompt(40), 1, ReplayMode::kBounded);
  const StepPlan& plan = harness.step();
  const ScheduledSequence& first = plan.sequences[0];
  for (int64_t layer = 3; layer < 6; ++layer)
    EXPECT_EQ(count_received(first.row_plan.get(), layer, 0, first.num_rows), 0);
  EXPECT_EQ(harness.scheduler.totals().replay_rows_by_layer, (std::vector<int64_t>{0, 0, 0}));
  harness.run_all();
  EXPECT_EQ(harness.scheduler.totals().encoder_rows_run, 40);
  EXPECT_EQ(harness.scheduler.totals().replay_rows_by_layer, (std::vector<int64_t>{4, 4, 1}));
}

TEST(Scheduler, StepPolicyTrimsEachStepButNeverGeneratedRows) {
  Harness harness(small_model(), roomy());
  const RequestId id = harness.submit(make_prompt(19), 3, ReplayMode::kStep);
  harness.run_all();
  // Chunks of 8, 8 and 3 rows keep 4, 4 and 3.
  EXPECT_EQ(harness.requests[id].facts.replay_rows_by_layer, (std::vector<int64_t>{11, 11, 11}));
}

TEST(Scheduler, PromptLogitsAreReadForEveryRowUntrimmed) {
  Harness harness(small_model(), roomy());
  const RequestId logits = harness.submit(make_prompt(21), 3, ReplayMode::kBounded, 0, /*reads_prompt_logits=*/true);
  const RequestId scored = harness.submit(make_prompt(11, 3), 0, ReplayMode::kExact, 0, /*reads_prompt_logits=*/true);
  harness.run_all();  // the harness checks that each row is read once
  EXPECT_EQ(harness.requests[logits].facts.replay_rows_by_layer, (std::vector<int64_t>{21, 21, 21}));
  EXPECT_TRUE(harness.requests[scored].finished);
}

TEST(Scheduler, WindowPagesComeBackAsTheWindowMoves) {
  // W 127, page 64, length 1024: the 127 rows behind the next one are live, which two pages hold.
  SchedulerConfig config = roomy(64);
  config.max_num_batched_tokens = 1024;
  config.max_model_len = 2000;
  config.model = make_facts(4, 2, 127);
  Scheduler scheduler(config);
  SequenceRequest request;
  request.id = 1;
  request.prompt = make_prompt(1024);
  request.max_tokens = 10;
  scheduler.add(request);
  scheduler.plan();
  EXPECT_EQ(scheduler.page_stats(kWindow).free_pages, 199 - 16);
  scheduler.commit(std::vector<SequenceResult>{{1, 5, false}});
  EXPECT_EQ(scheduler.page_stats(kWindow).free_pages, 199 - 2);
  EXPECT_EQ(scheduler.page_stats(kCompressed).free_pages, 399 - 16) << "compressed KV stays";
  scheduler.check_integrity();
}

TEST(Scheduler, LiveWindowRowsNeverFallBelowTheWindow) {
  for (int64_t page_size : {1, 4, 16}) {
    for (int64_t window : {1, 3, 4, 5, 8}) {
      SchedulerConfig config = roomy(page_size);
      config.model = make_facts(4, 2, window, true, /*ratio=*/1);
      Scheduler scheduler(config);
      SequenceRequest request;
      request.id = 1;
      request.prompt = make_prompt(21);
      request.max_tokens = 30;
      scheduler.add(request);
      for (int64_t length = 0; length < 50;) {
        const StepPlan& plan = scheduler.plan();
        const ScheduledSequence s = plan.sequences[0];
        length = s.start + s.num_rows;
        scheduler.commit(
            std::vector<SequenceResult>{{1, s.samples ? std::optional<int32_t>(1) : std::nullopt, length == 50}});
        if (length == 50) break;
        const PageStats stats = scheduler.page_stats(kWindow);
        const int64_t held = stats.num_pages - stats.free_pages;
        const int64_t unwritten = (page_size - length % page_size) % page_size;  // at the end of the last page
        EXPECT_GE(held * page_size - unwritten, std::min(window, length)) << "length " << length;
        EXPECT_LE(held, (window + 2 * page_size - 1) / page_size)
            << "length " << length << ": pages nobody can read are kept";
      }
    }
  }
}

TEST(Scheduler, PagesLargerThanTheWindow) {
  for (int64_t length : {255, 256, 257, 258, 383, 384, 385}) {
    SchedulerConfig config = roomy(256);
    config.max_num_batched_tokens = 100;
    config.num_pages = {6, 6};
    Harness harness(FakeModel::make(4, 2, 128), config);
    const RequestId id = harness.submit(make_prompt(length), 4);
    harness.run_all();
    EXPECT_EQ(harness.requests[id].generated, harness.alone(harness.requests[id].request)) << length;
  }
}

TEST(Scheduler, RefusesWhatCanNeverFit) {
  SchedulerConfig config = roomy();
  config.model = make_facts(6, 3, 4);
  config.max_model_len = 100;
  config.num_pages[kCompressed] = 11;
  Scheduler scheduler(config);
  SequenceRequest request;
  request.id = 1;
  EXPECT_NE(refusal(scheduler, request).find("at least one prompt token"), std::string::npos);
  request.prompt = make_prompt(90);
  request.max_tokens = 11;
  EXPECT_NE(refusal(scheduler, request).find("at most 100 tokens"), std::string::npos);
  request.prompt = make_prompt(30);
  request.max_tokens = 12;  // 41 rows: the last token is never run
  EXPECT_NE(refusal(scheduler, request).find("at most 10 pages of 4 tokens in the compressed cache"), std::string::npos)
      << refusal(scheduler, request);
  request.max_tokens = 11;
  EXPECT_EQ(refusal(scheduler, request), "");
  EXPECT_EQ(scheduler.num_waiting(), 1) << "refused requests leave nothing behind";
  EXPECT_NE(refusal(scheduler, request).find("new request id"), std::string::npos);
}

TEST(Scheduler, RefusesWhenTheQueueIsFull) {
  SchedulerConfig config = roomy();
  config.max_waiting = 2;
  Harness harness(small_model(), config);
  harness.submit(make_prompt(3), 2);
  harness.submit(make_prompt(3), 2);
  SequenceRequest request;
  request.id = 99;
  request.prompt = make_prompt(3);
  EXPECT_NE(refusal(harness.scheduler, request).find("fewer than 2 waiting requests"), std::string::npos);
  harness.step();
  EXPECT_EQ(refusal(harness.scheduler, request), "") << "there is room once some run";
}

TEST(Scheduler, RunsAsManyAsThereAreSlots) {
  SchedulerConfig config = roomy();
  config.max_num_seqs = 2;
  Harness harness(small_model(), config);
  for (int i = 0; i < 5; ++i) harness.submit(make_prompt(3, i), 4);
  harness.step();
  EXPECT_EQ(harness.scheduler.num_running(), 2);
  EXPECT_EQ(harness.scheduler.num_waiting(), 3);
  harness.run_all();
}

TEST(Scheduler, PriorityFirstThenArrival) {
  SchedulerConfig config = roomy();
  config.max_num_seqs = 1;
  Harness harness(small_model(), config);
  const RequestId low = harness.submit(make_prompt(3), 1, ReplayMode::kExact, 5);
  const RequestId first = harness.submit(make_prompt(3), 1, ReplayMode::kExact, 1);
  const RequestId second = harness.submit(make_prompt(3), 1, ReplayMode::kExact, 1);
  std::vector<RequestId> order;
  while (harness.scheduler.has_unfinished()) order.push_back(harness.step().sequences.at(0).id);
  EXPECT_EQ(order, (std::vector<RequestId>{first, second, low}));
}

TEST(Scheduler, AnUrgentPromptOvertakesALongOne) {
  Harness harness(small_model(), roomy());
  const RequestId longer = harness.submit(make_prompt(200), 1, ReplayMode::kExact, 1);
  harness.step();
  const RequestId urgent = harness.submit(make_prompt(6, 1), 1, ReplayMode::kExact, 0);
  const StepPlan& plan = harness.step();
  ASSERT_EQ(plan.sequences.size(), 2u);
  EXPECT_EQ(plan.sequences[0].id, urgent);
  EXPECT_EQ(plan.sequences[1].id, longer);
  EXPECT_TRUE(harness.requests[urgent].finished);
  harness.run_all();
}

TEST(Scheduler, PreemptsTheLatestOfTheLowestPriorityAndItContinues) {
  SchedulerConfig config = roomy();
  config.num_pages[kCompressed] = 1 + 12;
  Harness harness(small_model(), config);
  const RequestId a = harness.submit(make_prompt(10, 1), 20, ReplayMode::kBounded, 0);
  const RequestId b = harness.submit(make_prompt(10, 2), 20, ReplayMode::kBounded, 1);
  const RequestId c = harness.submit(make_prompt(10, 3), 20, ReplayMode::kExact, 1);
  harness.run_all();
  EXPECT_EQ(harness.requests[a].facts.preemptions, 0) << "the highest priority is never held up";
  EXPECT_GE(harness.requests[c].facts.preemptions, 1);
  EXPECT_GE(harness.requests[c].facts.preemptions, harness.requests[b].facts.preemptions);
  EXPECT_GT(harness.requests[c].facts.encoder_rows_run, 10) << "its prompt ran again";
  for (RequestId id : {a, b, c}) {
    EXPECT_EQ(harness.requests[id].generated, harness.alone(harness.requests[id].request)) << "request " << id;
  }
}

TEST(Scheduler, GeneratedRowsThatRunAgainAreNotTrimmedByStep) {
  SchedulerConfig config = roomy();
  config.max_num_batched_tokens = 64;
  config.num_pages[kCompressed] = 1 + 9;
  Harness harness(small_model(), config);
  harness.submit(make_prompt(10, 1), 24, ReplayMode::kBounded, /*priority=*/0);
  const RequestId low = harness.submit(make_prompt(10, 2), 16, ReplayMode::kStep, /*priority=*/1);
  int64_t again = 0;
  while (harness.scheduler.has_unfinished()) {
    for (const ScheduledSequence& s : harness.step().sequences) {
      if (s.id != low || s.start != 0 || s.num_rows <= 10) continue;
      ++again;
      ASSERT_NE(s.row_plan, nullptr);
      EXPECT_EQ(s.row_plan->layers[3].first_received, 6) << "the prompt's last W rows, and every generated one";
    }
  }
  EXPECT_EQ(again, 1);
}

TEST(Scheduler, ANewcomerLeavesRunningRequestsThePagesTheyWillSoonWant) {
  SchedulerConfig config = roomy();
  config.num_pages[kCompressed] = 1 + 10;
  Harness harness(small_model(), config);
  harness.submit(make_prompt(12, 1), 8);
  harness.step();
  harness.step();
  harness.submit(make_prompt(24, 2), 2);  // six pages: all that are free
  EXPECT_EQ(harness.step().sequences.size(), 1u);
  harness.run_all();
  EXPECT_EQ(harness.scheduler.totals().preemptions, 0);
}

TEST(Scheduler, PromptLogitsAreNotReadTwiceAfterAPreemption) {
  SchedulerConfig config = roomy();
  config.num_pages[kCompressed] = 1 + 9;
  Harness harness(small_model(), config);
  harness.submit(make_prompt(10, 1), 24, ReplayMode::kBounded, 0);
  const RequestId b = harness.submit(make_prompt(10, 2), 8, ReplayMode::kBounded, 1, /*reads_prompt_logits=*/true);
  harness.run_all();
  EXPECT_GE(harness.requests[b].facts.preemptions, 1);
}

TEST(Scheduler, ALongPromptBesideGrowingDecodesFinishes) {
  SchedulerConfig config = roomy();
  config.num_pages = {1 + 8, 1 + 40};
  Harness harness(small_model(), config);
  for (int i = 0; i < 3; ++i) harness.submit(make_prompt(2, i), 60);
  for (int i = 0; i < 3; ++i) harness.step();
  const RequestId id = harness.submit(make_prompt(101, 9), 3);
  harness.run_all();
  EXPECT_TRUE(harness.requests[id].finished);
  EXPECT_EQ(harness.requests[id].generated, harness.alone(harness.requests[id].request));
}

TEST(Scheduler, OneRequestMuchLongerThanTheOthers) {
  Harness harness(small_model(), roomy());
  for (int i = 0; i < 3; ++i) harness.submit(make_prompt(3, i), 3);
  harness.submit(make_prompt(300, 9), 3);
  harness.run_all();
}

TEST(Scheduler, PoolsThatJustFitOneRequestServeManyInTurn) {
  SchedulerConfig config = roomy();
  config.num_pages[kWindow] = 1 + 3;  // W + 1 = 5 rows touch at most 2 pages of 4... and one to spare
  config.num_pages[kCompressed] = 1 + 6;
  Harness harness(small_model(), config);
  for (int i = 0; i < 6; ++i) harness.submit(make_prompt(15, i), 10);
  harness.run_all();
  for (auto& [id, entry] : harness.requests) EXPECT_EQ(entry.generated, harness.alone(entry.request));
}

TEST(Scheduler, AbortAtEveryStepThenTheSamePromptAgain) {
  const std::vector<int32_t> prompt = make_prompt(30);
  for (int64_t abort_at = 0; abort_at < 10; ++abort_at) {
    Harness harness(small_model(), roomy());
    const RequestId other = harness.submit(make_prompt(5, 7), 12);
    const RequestId aborted = harness.submit(prompt, 6);
    for (int64_t i = 0; i < abort_at; ++i) harness.step();
    harness.abort(aborted);
    const RequestId again = harness.submit(prompt, 6);
    harness.run_all();
    EXPECT_EQ(harness.requests[again].generated, harness.alone(harness.requests[again].request)) << abort_at;
    EXPECT_EQ(harness.requests[other].generated, harness.alone(harness.requests[other].request)) << abort_at;
  }
}

TEST(Scheduler, AbortWhileAStepRuns) {
  Harness harness(small_model(), roomy());
  const RequestId kept = harness.submit(make_prompt(3, 1), 5);
  const RequestId aborted = harness.submit(make_prompt(3, 2), 5);
  harness.before_commit = [&](const StepPlan& plan) {
    if (harness.steps != 2) return;
    harness.abort(aborted);
    EXPECT_EQ(plan.sequences[1].tokens.size(), 5u) << "the running step still reads the tokens";
    EXPECT_EQ(plan.sequences[1].tokens[2], make_prompt(3, 2)[2]);
  };
  harness.run_all();
  EXPECT_EQ(harness.requests[kept].generated.size(), 5u);
  EXPECT_EQ(harness.requests[aborted].generated.size(), 3u);
}

TEST(Scheduler, AbortAllWithMoreQueuedThanRunning) {
  Harness harness(small_model(), roomy());
  for (int i = 0; i < 20; ++i) harness.submit(make_prompt(5, i), 5);
  harness.step();
  EXPECT_GT(harness.scheduler.num_waiting(), harness.scheduler.num_running());
  EXPECT_EQ(harness.scheduler.abort_all().size(), 20u);
  EXPECT_FALSE(harness.scheduler.has_unfinished());
  harness.scheduler.check_integrity();
  harness.expect_all_free();
  EXPECT_TRUE(harness.scheduler.plan().sequences.empty());
  EXPECT_FALSE(harness.scheduler.abort(1));
}

TEST(Scheduler, APlanThatIsNotCommittedIsPlannedAgain) {
  SchedulerConfig config = roomy();
  Harness harness(small_model(), config);
  const RequestId id = harness.submit(make_prompt(11), 3);
  const size_t updates = harness.scheduler.plan().block_table_updates.size();
  EXPECT_EQ(updates, 2u + 3u) << "window pages for the chunk, compressed pages for the prompt";
  harness.scheduler.plan();
  EXPECT_EQ(harness.scheduler.plan().block_table_updates.size(), updates) << "nobody applied them";
  harness.run_all();
  EXPECT_EQ(harness.requests[id].generated, harness.alone(harness.requests[id].request));
}

TEST(Scheduler, ResultsOutOfThePlanAreRefusedAndChangeNothing) {
  Harness harness(small_model(), roomy());
  const RequestId id = harness.submit(make_prompt(3), 2);
  harness.scheduler.plan();
  EXPECT_THROW(harness.scheduler.commit(std::vector<SequenceResult>{{77, 1, false}}), std::invalid_argument);
  EXPECT_THROW(harness.scheduler.commit({}), std::invalid_argument) << "the row that samples brought nothing";
  harness.scheduler.check_integrity();
  harness.run_all();
  EXPECT_EQ(harness.requests[id].generated, harness.alone(harness.requests[id].request));
}

TEST(Scheduler, SlotsAreReusedManyTimes) {
  SchedulerConfig config = roomy();
  config.max_num_seqs = 2;
  Harness harness(small_model(), config);
  for (int i = 0; i < 200; ++i) harness.submit(make_prompt(3 + i % 5, i % 3), 1 + i % 4);
  harness.run_all();
  for (auto& [id, entry] : harness.requests) EXPECT_EQ(entry.generated, harness.alone(entry.request)) << id;
}

TEST(Scheduler, AModelWithoutKvSourcesHasNoCompressedGroup) {
  SchedulerConfig config = roomy();
  Harness harness(FakeModel::make(4, 0, 4), config);
  const RequestId id = harness.submit(make_prompt(30), 5, ReplayMode::kBounded);
  const StepPlan& plan = harness.step();
  EXPECT_EQ(plan.sequences[0].row_plan, nullptr) << "nothing can replay without encoder layers";
  for (const BlockTableUpdate& update : plan.block_table_updates) EXPECT_EQ(update.group, kWindow);
  harness.run_all();
  EXPECT_TRUE(harness.requests[id].finished);
}

}  // namespace
}  // namespace reprise
