#include <gtest/gtest.h>

#include "scheduler_harness.h"

namespace reprise {
namespace {

using testing::FakeModel;
using testing::Harness;
using testing::kCompressed;
using testing::make_prompt;

// Three encoder layers of six, W 4: under exact rebuild a long suffix after a hit H starts at row H - 2 (W - 1) = H -
// 6, since the last source receives from H on.
FakeModel small_model() { return FakeModel::make(6, 3, 4); }

SchedulerConfig caching(PrefixRebuild rebuild = PrefixRebuild::kExact, int64_t page_size = 4) {
  SchedulerConfig config;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 64;
  config.max_model_len = 2000;
  config.page_size = page_size;
  config.num_pages = {4000 / page_size + 50, 8000 / page_size + 50};
  config.enable_prefix_caching = true;
  config.prefix_rebuild = rebuild;
  return config;
}

// `shared` tokens of a common text, then a tail that differs from the first token on.
std::vector<int32_t> prompt_sharing(int64_t shared, int64_t length, int32_t tail) {
  std::vector<int32_t> prompt = make_prompt(length);
  for (int64_t p = shared; p < length; ++p) prompt[static_cast<size_t>(p)] = 100 + tail;
  return prompt;
}

// Serves `prompt` after `first` is in the cache; expects the tokens it gets alone.
RequestFacts serve_second(Harness& harness, std::vector<int32_t> first, std::vector<int32_t> prompt, ReplayMode mode) {
  harness.submit(std::move(first), 2, mode);
  harness.run_all();
  const RequestId id = harness.submit(std::move(prompt), 8, mode);
  harness.run_all();
  if (harness.scheduler.config().prefix_rebuild != PrefixRebuild::kBounded) {
    EXPECT_EQ(harness.requests[id].generated, harness.alone(harness.requests[id].request));
  }
  return harness.requests[id].facts;
}

TEST(SchedulerPrefix, ASharedPrefixIsTakenAndItsHaloRebuilt) {
  for (ReplayMode mode : {ReplayMode::kBounded, ReplayMode::kExact}) {
    Harness harness(small_model(), caching());
    const RequestFacts facts = serve_second(harness, prompt_sharing(22, 50, 1), prompt_sharing(22, 50, 2), mode);
    EXPECT_EQ(facts.cached_rows, 20) << "whole pages of 4";
    EXPECT_EQ(facts.encoder_rows_run, 50 - (20 - 6));
  }
}

TEST(SchedulerPrefix, WithoutReplayTheHaloReachesThroughEveryLayer) {
  Harness harness(small_model(), caching());
  const RequestFacts facts =
      serve_second(harness, prompt_sharing(22, 50, 1), prompt_sharing(22, 50, 2), ReplayMode::kOff);
  EXPECT_EQ(facts.cached_rows, 20);
  EXPECT_EQ(facts.encoder_rows_run, 50 - (20 - 6 * 3));
}

TEST(SchedulerPrefix, AHitNoLongerThanItsHaloIsNotAdopted) {
  Harness harness(small_model(), caching());
  const RequestFacts facts =
      serve_second(harness, prompt_sharing(18, 50, 1), prompt_sharing(18, 50, 2), ReplayMode::kOff);
  EXPECT_EQ(facts.cached_rows, 0) << "16 tokens, but 18 would run again";
  EXPECT_EQ(facts.encoder_rows_run, 50);
}

TEST(SchedulerPrefix, BoundedRebuildRunsTheLastWindowOfTheHit) {
  Harness harness(small_model(), caching(PrefixRebuild::kBounded));
  const RequestFacts facts =
      serve_second(harness, prompt_sharing(22, 50, 1), prompt_sharing(22, 50, 2), ReplayMode::kBounded);
  EXPECT_EQ(facts.cached_rows, 20);
  EXPECT_EQ(facts.encoder_rows_run, 50 - (20 - 4));

  Harness other(small_model(), caching(PrefixRebuild::kBounded));
  EXPECT_EQ(serve_second(other, prompt_sharing(7, 50, 1), prompt_sharing(7, 50, 2), ReplayMode::kBounded).cached_rows,
            0)
      << "hits no longer than W are not adopted";
}

TEST(SchedulerPrefix, HitsAroundTheWindowAndThePage) {
  const int64_t window = 128;
  for (int64_t page_size : {1, 16, 64, 128}) {
    for (int64_t shared : {1, 127, 128, 129, 255, 256, 257, 383}) {
      const int64_t hit = shared / page_size * page_size;
      SchedulerConfig bounded = caching(PrefixRebuild::kBounded, page_size);
      FakeModel model = FakeModel::make(4, 2, window);
      model.ratios = {1, 1, 1, 1};  // page 1 holds no group of two
      Harness harness(model, bounded);
      const int64_t length = shared + 30;
      const RequestFacts facts = serve_second(harness, prompt_sharing(shared, length, 1),
                                              prompt_sharing(shared, length, 2), ReplayMode::kBounded);
      EXPECT_EQ(facts.cached_rows, hit > window ? hit : 0) << "page " << page_size << " shared " << shared;

      // A suffix so long that the last source needs no row below the hit: layer 0 starts W - 1 rows below it.
      Harness exact(model, caching(PrefixRebuild::kExact, page_size));
      const int64_t longer = shared + 4 * window;
      const RequestFacts rebuilt =
          serve_second(exact, prompt_sharing(shared, longer, 1), prompt_sharing(shared, longer, 2), ReplayMode::kExact);
      EXPECT_EQ(rebuilt.cached_rows, hit > window - 1 ? hit : 0) << "page " << page_size << " shared " << shared;
      EXPECT_EQ(rebuilt.encoder_rows_run, hit > window - 1 ? longer - (hit - (window - 1)) : longer);
    }
  }
}

TEST(SchedulerPrefix, AFullyCachedPromptStillRunsItsLastToken) {
  for (PrefixRebuild rebuild : {PrefixRebuild::kExact, PrefixRebuild::kBounded}) {
    SchedulerConfig config = caching(rebuild);
    Harness harness(FakeModel::make(4, 2, 2), config);
    const RequestFacts facts = serve_second(harness, make_prompt(32), make_prompt(32), ReplayMode::kBounded);
    EXPECT_EQ(facts.cached_rows, 28);
    EXPECT_GE(facts.encoder_rows_run, 4);
  }
}

TEST(SchedulerPrefix, HitsGrowWithTheSharedPrefix) {
  int64_t previous = 0;
  for (int64_t shared = 32; shared <= 64; ++shared) {
    Harness harness(small_model(), caching());
    const int64_t cached =
        serve_second(harness, make_prompt(64), prompt_sharing(shared, 100, 2), ReplayMode::kExact).cached_rows;
    EXPECT_EQ(cached, shared / 4 * 4);
    EXPECT_GE(cached, previous);
    previous = cached;
  }
}

TEST(SchedulerPrefix, AShorterPromptInsideTheCachedOne) {
  Harness harness(small_model(), caching());
  EXPECT_EQ(serve_second(harness, make_prompt(256), make_prompt(140), ReplayMode::kExact).cached_rows, 136);
}

TEST(SchedulerPrefix, AnswersAreCachedToo) {
  Harness harness(small_model(), caching());
  const RequestId first = harness.submit(make_prompt(30), 20);
  harness.run_all();
  std::vector<int32_t> turn = make_prompt(30);  // the next turn of a conversation: prompt, answer, question
  for (int32_t token : harness.requests[first].generated) turn.push_back(token);
  for (int i = 0; i < 30; ++i) turn.push_back(7);
  const RequestId second = harness.submit(turn, 4);
  harness.run_all();
  EXPECT_EQ(harness.requests[second].facts.cached_rows, 48) << "49 rows ran: the last token of an answer does not";
  EXPECT_EQ(harness.requests[second].generated, harness.alone(harness.requests[second].request));
}

TEST(SchedulerPrefix, RequestsThatArriveTogetherShareAsSoonAsTheFirstHasRun) {
  SchedulerConfig config = caching();
  config.max_num_batched_tokens = 512;
  Harness harness(small_model(), config);
  std::vector<RequestId> ids;
  for (int32_t i = 0; i < 4; ++i) ids.push_back(harness.submit(prompt_sharing(80, 110, i), 3));
  EXPECT_EQ(harness.step().sequences.size(), 1u) << "the others wait for blocks that complete in this step";
  EXPECT_EQ(harness.step().sequences.size(), 4u);
  harness.run_all();
  for (size_t i = 1; i < ids.size(); ++i) {
    EXPECT_EQ(harness.requests[ids[i]].facts.cached_rows, 80);
    EXPECT_EQ(harness.requests[ids[i]].generated, harness.alone(harness.requests[ids[i]].request));
  }
}

TEST(SchedulerPrefix, NobodyWaitsForAPrefixThatWouldNotPay) {
  SchedulerConfig config = caching();
  config.max_num_batched_tokens = 512;
  Harness harness(small_model(), config);
  for (int32_t i = 0; i < 3; ++i) harness.submit(prompt_sharing(5, 40, i), 3);
  EXPECT_EQ(harness.step().sequences.size(), 3u);
  harness.run_all();
}

TEST(SchedulerPrefix, SaltsKeepRequestsApart) {
  Harness harness(small_model(), caching());
  std::vector<int64_t> cached;
  for (uint64_t salt : {1, 2, 1}) {
    SequenceRequest request;
    request.id = static_cast<RequestId>(100 + cached.size());
    request.prompt = make_prompt(60);
    request.max_tokens = 2;
    request.replay = ReplayMode::kExact;
    request.cache_salt = salt;
    harness.submit(request);
    harness.run_all();
    cached.push_back(harness.requests[request.id].facts.cached_rows);
  }
  EXPECT_EQ(cached, (std::vector<int64_t>{0, 0, 56}));
}

TEST(SchedulerPrefix, RequestsThatReadEveryRowTakeNoHit) {
  Harness harness(small_model(), caching());
  harness.submit(make_prompt(60), 2);
  harness.run_all();
  const RequestId logits = harness.submit(make_prompt(60), 2, ReplayMode::kExact, 0, /*reads_prompt_logits=*/true);
  harness.run_all();
  EXPECT_EQ(harness.requests[logits].facts.cached_rows, 0);
  EXPECT_EQ(harness.requests[logits].facts.encoder_rows_run, 60);
}

// The harness compares every row with the request run alone, so a hit under the default changes nothing.
TEST(SchedulerPrefix, TheDefaultRebuildsExactlyUnderEveryMode) {
  for (ReplayMode mode : {ReplayMode::kOff, ReplayMode::kBounded, ReplayMode::kExact}) {
    Harness harness(small_model(), caching(PrefixRebuild::kAuto));
    const RequestFacts facts = serve_second(harness, prompt_sharing(22, 50, 1), prompt_sharing(22, 50, 2), mode);
    EXPECT_EQ(facts.cached_rows, 20);
    EXPECT_EQ(facts.prefix_rebuild, PrefixRebuild::kExact);
    EXPECT_EQ(harness.requests[1].facts.prefix_rebuild, PrefixRebuild::kAuto) << "the first found nothing";
  }
}

TEST(SchedulerPrefix, ExactRequestsTakeNothingApproximate) {
  Harness harness(small_model(), caching(PrefixRebuild::kBounded));
  harness.submit(make_prompt(60), 2, ReplayMode::kBounded);
  harness.run_all();
  const RequestId exact = harness.submit(make_prompt(60), 2, ReplayMode::kExact);
  const RequestId bounded = harness.submit(make_prompt(60), 2, ReplayMode::kBounded);
  harness.run_all();
  EXPECT_EQ(harness.requests[exact].facts.cached_rows, 0);
  EXPECT_EQ(harness.requests[exact].generated, harness.alone(harness.requests[exact].request));
  EXPECT_EQ(harness.requests[bounded].facts.cached_rows, 56);
  EXPECT_EQ(harness.requests[bounded].facts.prefix_rebuild, PrefixRebuild::kBounded);
}

TEST(SchedulerPrefix, TheLeastRecentlyUsedPrefixGoesFirst) {
  SchedulerConfig config = caching();
  config.num_pages[kCompressed] = 1 + 30;
  Harness harness(small_model(), config);
  const auto serve = [&](int32_t text) {
    std::vector<int32_t> prompt = make_prompt(40, text);
    const RequestId id = harness.submit(prompt, 1);
    harness.run_all();
    return harness.requests[id].facts.cached_rows;
  };
  EXPECT_EQ(serve(1), 0);  // ten pages each
  EXPECT_EQ(serve(2), 0);
  EXPECT_EQ(serve(1), 36) << "used again: 2 is now the oldest";
  EXPECT_EQ(serve(3), 0);
  EXPECT_EQ(serve(4), 0) << "evicts";
  EXPECT_EQ(serve(1), 36);
  EXPECT_LT(serve(2), 36);
}

TEST(SchedulerPrefix, PreemptedAfterAHitAndResumedWithoutOne) {
  SchedulerConfig config = caching();
  config.num_pages[kCompressed] = 1 + 26;
  Harness harness(small_model(), config);
  harness.submit(make_prompt(40), 1);
  harness.run_all();
  const RequestId low = harness.submit(prompt_sharing(36, 44, 1), 30, ReplayMode::kExact, /*priority=*/1);
  EXPECT_EQ(harness.step().sequences.at(0).publish_from, 36);
  const RequestId high = harness.submit(make_prompt(40, 5), 60, ReplayMode::kExact, /*priority=*/0);
  std::vector<int64_t> starts;
  while (harness.scheduler.has_unfinished()) {
    for (const ScheduledSequence& s : harness.step().sequences) {
      if (s.id == low && s.num_rows > 1) starts.push_back(s.publish_from);
    }
  }
  EXPECT_EQ(harness.requests[low].facts.preemptions, 1);
  ASSERT_FALSE(starts.empty());
  EXPECT_LT(starts[0], 36) << "the shared blocks were evicted meanwhile";
  // The harness sees every write to a compressed cell; none may hit a page that was shared.
  for (RequestId id : {low, high})
    EXPECT_EQ(harness.requests[id].generated, harness.alone(harness.requests[id].request));
}

TEST(SchedulerPrefix, ABoundedRequestContinuesBehindTheHitItBeganWith) {
  // What a bounded rebuild computes depends on where the hit ended: after a preemption the request finds its own blocks
  // in the cache, but one that began cold would go on as another request if it took them.
  for (bool began_with_hit : {false, true}) {
    SchedulerConfig config = caching(PrefixRebuild::kBounded);
    config.num_pages[kCompressed] = 1 + 14;
    Harness harness(small_model(), config);
    if (began_with_hit) {
      harness.submit(prompt_sharing(12, 13, 1), 1, ReplayMode::kBounded);
      harness.run_all();
    }
    const RequestId low = harness.submit(prompt_sharing(12, 20, 2), 30, ReplayMode::kBounded, /*priority=*/1);
    harness.submit(make_prompt(10, 5), 20, ReplayMode::kBounded, /*priority=*/0);
    std::vector<int64_t> hits;
    while (harness.scheduler.has_unfinished()) {
      for (const ScheduledSequence& s : harness.step().sequences) {
        if (s.id == low && s.num_rows > 1) hits.push_back(s.publish_from);
      }
    }
    EXPECT_EQ(harness.requests[low].facts.preemptions, 1);
    EXPECT_EQ(hits, (began_with_hit ? std::vector<int64_t>{12, 12} : std::vector<int64_t>{0, 0}));
    if (!began_with_hit) {
      EXPECT_EQ(harness.requests[low].generated, harness.alone(harness.requests[low].request));
    }
  }
}

TEST(SchedulerPrefix, TheSamePromptAgainAndAgainOverTwoSlots) {
  SchedulerConfig config = caching();
  config.max_num_seqs = 2;
  config.num_pages[kCompressed] = 1 + 40;
  Harness harness(small_model(), config);
  std::vector<int32_t> expected;
  for (int i = 0; i < 200; ++i) {
    const RequestId id = harness.submit(make_prompt(50), 4);
    harness.submit(make_prompt(20 + i % 17, 1 + i % 5), 3, i % 2 == 0 ? ReplayMode::kExact : ReplayMode::kBounded);
    harness.run_all();
    if (expected.empty()) expected = harness.alone(harness.requests[id].request);
    ASSERT_EQ(harness.requests[id].generated, expected) << "round " << i;
  }
  EXPECT_GT(harness.scheduler.totals().cached_rows, 0);
}

TEST(SchedulerPrefix, AbortAtEveryChunkThenTheSamePromptAgain) {
  const std::vector<int32_t> prompt = make_prompt(60);
  for (int64_t abort_at = 0; abort_at < 12; ++abort_at) {
    SchedulerConfig config = caching();
    config.max_num_batched_tokens = 7;
    Harness harness(small_model(), config);
    const RequestId aborted = harness.submit(prompt, 6);
    for (int64_t i = 0; i < abort_at; ++i) harness.step();
    harness.abort(aborted);
    harness.expect_all_free();
    const RequestId again = harness.submit(prompt, 6);
    harness.run_all();
    EXPECT_EQ(harness.requests[again].generated, harness.alone(harness.requests[again].request)) << abort_at;
  }
}

}  // namespace
}  // namespace reprise
