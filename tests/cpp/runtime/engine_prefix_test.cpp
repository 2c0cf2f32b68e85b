// Prefix hits that broke other engines. Under exact rebuild each request's logits equal, bit for bit, those of a cold
// engine. The tiny checkpoints have W 8 and ten layers, six of them encoder layers: a hit is worth taking when it is
// longer than its halo, (6 - 1) * (W - 1) = 35 rows where the replay trims and the suffix is long, 10 * (W - 1) = 70
// where it does not.
#include "engine_cases.h"
#include "reprise/engine.h"
#include "reprise/error.h"

namespace reprise::testing {
namespace {

constexpr const char* kCheckpoint = "v41-tiny";
constexpr int64_t kHalo = 35;
constexpr int64_t kLongSuffix = 45;  // the last source reads no row below the hit: 4 * (W - 1) + W - 1 < 45

EngineConfig config_of(ReplayMode replay, int64_t page_size = 4, const std::string& checkpoint = kCheckpoint) {
  EngineConfig config = tiny_config(checkpoint);
  config.replay = replay;
  config.prefix_rebuild = PrefixRebuild::kExact;
  config.enable_prefix_caching = true;
  config.max_num_batched_tokens = 64;
  config.page_size = page_size;
  config.max_model_len = 1024;
  return config;
}

class Cached {
 public:
  explicit Cached(EngineConfig config, const std::string& checkpoint = kCheckpoint)
      : folder_(data_path(checkpoint)), engine_(Engine::load(folder_, std::move(config))) {}

  // Runs the request, expects what a cold engine gives and says how many tokens it found.
  int64_t serve(const Request& request) {
    const Generated result = run(*engine_, {request}).front();
    EXPECT_TRUE(result == cold(folder_, engine_->config(), request))
        << "prompt of " << request.prompt_token_ids.size() << " tokens, hit " << result.metrics.cached_rows << ", page "
        << engine_->config().page_size << ", replay " << static_cast<int>(engine_->config().replay);
    expect_all_pages_free(*engine_);
    return result.metrics.cached_rows;
  }
  Engine& engine() { return *engine_; }
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
  std::unique_ptr<Engine> engine_;
};

// Hits at, before and behind multiples of the window and the page; those no longer than the halo are not taken.
TEST(EnginePrefix, HitsAroundTheWindowAndThePage) {
  for (const ReplayMode replay : {ReplayMode::kExact, ReplayMode::kBounded}) {
    for (const int64_t page : {2, 4, 8, 16}) {
      Cached cached(config_of(replay, page));
      cached.serve(make_request(make_prompt(80, 1), 3));
      for (const int64_t shared : {1, 7, 8, 9, 15, 16, 17, 23, 35, 36, 37, 47, 48, 49, 63, 64, 65, 72}) {
        const int64_t hit = shared / page * page;
        EXPECT_EQ(cached.serve(make_request(
                      make_prompt_sharing(shared, shared + kLongSuffix, 1, static_cast<int32_t>(shared)), 4)),
                  hit > kHalo ? hit : 0)
            << "page " << page << " shared " << shared;
      }
    }
  }
}

TEST(EnginePrefix, WithoutReplayTheHaloReachesThroughEveryLayer) {
  Cached cached(config_of(ReplayMode::kOff));
  cached.serve(make_request(make_prompt(100, 1), 1));
  for (const int64_t shared : {68, 71, 72, 73, 92}) {
    const int64_t hit = shared / 4 * 4;
    EXPECT_EQ(cached.serve(make_request(make_prompt_sharing(shared, shared + 9, 1, static_cast<int32_t>(shared)), 12)),
              hit > 70 ? hit : 0);
  }
}

// A short suffix reaches further down: the replay layers need rows below the hit too.
TEST(EnginePrefix, SuffixesOfEveryLength) {
  for (const ReplayMode replay : {ReplayMode::kOff, ReplayMode::kExact, ReplayMode::kBounded}) {
    Cached cached(config_of(replay));
    cached.serve(make_request(make_prompt(96, 2), 1));
    for (int64_t suffix = 1; suffix <= 44; suffix += suffix < 10 ? 1 : 6) {
      EXPECT_EQ(cached.serve(make_request(make_prompt_sharing(96, 96 + suffix, 2, static_cast<int32_t>(suffix)), 3)),
                96)
          << suffix;
    }
  }
}

TEST(EnginePrefix, AFullyCachedPromptStillRunsItsLastToken) {
  for (const ReplayMode replay : {ReplayMode::kOff, ReplayMode::kExact, ReplayMode::kBounded}) {
    for (const int64_t page : {4, 16}) {
      Cached cached(config_of(replay, page));
      const Request request = make_request(make_prompt(96, 3), 9);
      EXPECT_EQ(cached.serve(request), 0);
      EXPECT_EQ(cached.serve(request), 96 - page);
      EXPECT_EQ(cached.serve(request), 96 - page);
    }
  }
}

TEST(EnginePrefix, HitsGrowWithTheSharedPrefix) {
  Cached cached(config_of(ReplayMode::kExact));
  cached.serve(make_request(make_prompt(96, 4), 1));
  int64_t previous = 0;
  for (int64_t shared = 64; shared <= 96; ++shared) {
    const int64_t hit =
        cached.serve(make_request(make_prompt_sharing(shared, 96 + kLongSuffix, 4, static_cast<int32_t>(shared)), 2));
    EXPECT_GE(hit, previous);
    EXPECT_EQ(hit, shared / 4 * 4);
    previous = hit;
  }
}

TEST(EnginePrefix, AShorterPromptInsideTheCachedOne) {
  for (const ReplayMode replay : {ReplayMode::kOff, ReplayMode::kExact, ReplayMode::kBounded}) {
    Cached cached(config_of(replay, 16));
    cached.serve(make_request(make_prompt(256, 5), 2));
    EXPECT_EQ(cached.serve(make_request(make_prompt(140, 5), 6)), 128);
    EXPECT_EQ(cached.serve(make_request(make_prompt(256, 5), 6)), 240);
  }
}

TEST(EnginePrefix, AnswersAreCachedToo) {
  Cached cached(config_of(ReplayMode::kExact));
  const Request first = make_request(make_prompt(50, 6), 20);
  std::vector<int32_t> turn = first.prompt_token_ids;
  const Generated answer = run(cached.engine(), {first}).front();
  turn.insert(turn.end(), answer.tokens.begin(), answer.tokens.end());
  const auto question = make_prompt(kLongSuffix, 7);
  turn.insert(turn.end(), question.begin(), question.end());
  EXPECT_EQ(cached.serve(make_request(turn, 5)), 68) << "69 rows ran: the last token of an answer does not";
}

TEST(EnginePrefix, RequestsThatArriveTogetherShareAsSoonAsTheFirstHasRun) {
  EngineConfig config = config_of(ReplayMode::kBounded);
  config.max_num_batched_tokens = 512;
  const auto engine = Engine::load(data_path(kCheckpoint), config);
  std::vector<Request> requests;
  for (int32_t i = 0; i < 4; ++i)
    requests.push_back(make_request(make_prompt_sharing(80, 130, 8, i), 3, static_cast<size_t>(i)));
  const auto results = run(*engine, requests);
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].metrics.cached_rows, i == 0 ? 0 : 80);
    EXPECT_TRUE(results[i] == cold(data_path(kCheckpoint), config, requests[i]));
  }
  EXPECT_EQ(engine->stats().encoder_rows_run, 130 + 3 * (50 + kHalo));
}

// Short of pages: the second request takes the hit, is preempted, and finds its prefix evicted when it resumes. What
// it shared while it ran is read by the third, which must find it untouched.
TEST(EnginePrefix, PreemptedAfterAHitAndResumedWithoutOne) {
  for (const char* checkpoint : {"v41-tiny", "v41-tiny-engram"}) {
    for (const ReplayMode replay : {ReplayMode::kOff, ReplayMode::kExact, ReplayMode::kBounded}) {
      SCOPED_TRACE(concat(checkpoint, ", replay ", static_cast<int>(replay)));
      EngineConfig config = config_of(replay, 4, checkpoint);
      config.max_num_seqs = 2;
      config.kv_cache_memory = memory_for(data_path(checkpoint), config, 52);
      Cached cached(config, checkpoint);
      Engine& engine = cached.engine();
      cached.serve(make_request(make_prompt(80, 9), 1));

      Request low = make_request(make_prompt_sharing(76, 90, 9, 1), 60, 1);
      low.priority = 1;
      const Request high = make_request(make_prompt(80, 10), 90);
      std::map<RequestId, Generated> results;
      const RequestId low_id = engine.submit(low);
      for (int i = 0; i < 3; ++i) {
        for (const auto& output : checked_step(engine)) take(output, results[output.id]);
      }
      const RequestId high_id = engine.submit(high);
      while (engine.has_unfinished()) {
        for (const auto& output : checked_step(engine)) take(output, results[output.id]);
      }
      EXPECT_EQ(results[low_id].metrics.cached_rows, 76);
      EXPECT_GE(results[low_id].metrics.preemptions, 1);
      EXPECT_GT(results[low_id].metrics.encoder_rows_run, 90 + 40) << "it ran its prompt again from further down";
      EXPECT_TRUE(results[low_id] == cold(cached.folder(), config, low));
      EXPECT_TRUE(results[high_id] == cold(cached.folder(), config, high));
      cached.serve(make_request(make_prompt(80, 9), 5));
      cached.serve(make_request(low.prompt_token_ids, 5));
    }
  }
}

TEST(EnginePrefix, AbortAtEveryChunkThenTheSamePromptAgain) {
  const Request request = make_request(make_prompt(90, 11), 4);
  for (const ReplayMode replay : {ReplayMode::kExact, ReplayMode::kBounded}) {
    for (int abort_at = 0; abort_at < 16; ++abort_at) {
      EngineConfig config = config_of(replay);
      config.max_num_batched_tokens = 8;
      Cached cached(config);
      const RequestId id = cached.engine().submit(request);
      for (int i = 0; i < abort_at; ++i) checked_step(cached.engine());
      EXPECT_EQ(cached.engine().abort(id), abort_at < 15) << "twelve steps of the prompt and three decodes";
      EXPECT_EQ(checked_step(cached.engine()).size(), abort_at < 15 ? 1u : 0u);
      expect_all_pages_free(cached.engine());
      const int64_t complete = std::min<int64_t>(8 * abort_at, 90) / 4 * 4;
      const int64_t hit = cached.serve(request);
      EXPECT_LE(hit, std::min<int64_t>(complete, 88));
      if (complete > 70) {
        EXPECT_GT(hit, 0) << "the chunks that ran are not lost";
      }
    }
  }
}

// Over two slots, with another request in between, 200 times.
TEST(EnginePrefix, TheSamePromptAgainAndAgainOverTwoSlots) {
  EngineConfig config = config_of(ReplayMode::kExact);
  config.max_num_seqs = 2;
  config.kv_cache_memory = memory_for(data_path(kCheckpoint), config, 44);  // a prompt of 160 evicts all
  const auto engine = Engine::load(data_path(kCheckpoint), config);
  const Request request = make_request(make_prompt(75, 12), 2);
  const Generated want = cold(data_path(kCheckpoint), config, request);
  std::vector<Request> others;
  std::vector<Generated> wanted;
  for (unsigned i = 0; i < 10; ++i) {
    others.push_back(
        make_request(make_prompt_sharing(i % 2 == 0 ? 50 : 0, 20 + 9 * i, 12, static_cast<int32_t>(i)), 3, i));
    wanted.push_back(cold(data_path(kCheckpoint), config, others.back()));
  }
  for (size_t i = 0; i < 200; ++i) {
    const auto results = run(*engine, {request, others[i % 10]});
    ASSERT_TRUE(results[0] == want) << "round " << i;
    ASSERT_TRUE(results[1] == wanted[i % 10]) << "round " << i;
    EXPECT_EQ(results[0].metrics.cached_rows > 0, i % 20 != 0) << "round " << i;
    if (i % 20 == 19) run(*engine, {make_request(make_prompt(160, 200 + static_cast<unsigned>(i)), 3)});
  }
  expect_all_pages_free(*engine);
}

// The hash of a row looks three tokens back: to ids before the chunk, before the hit, and again after a preemption.
TEST(EnginePrefix, TheEngramLooksBackAcrossChunksHitsAndPreemptions) {
  for (const int64_t budget : {1, 2, 5, 64}) {
    EngineConfig config = config_of(ReplayMode::kExact, 4, "v41-tiny-engram");
    config.max_num_batched_tokens = budget;
    config.max_num_seqs = std::min<int64_t>(budget, 4);
    config.max_model_len = 160;
    config.kv_cache_memory = memory_share(data_path("v41-tiny-engram"), config, 0.5);
    Cached cached(config, "v41-tiny-engram");
    cached.serve(make_request(make_prompt(60, 13), 2));
    EXPECT_EQ(cached.serve(make_request(make_prompt_sharing(58, 60 + kLongSuffix, 13, 1), 3)), 56);
    std::vector<Request> requests;
    for (int32_t i = 0; i < 4; ++i)
      requests.push_back(make_request(make_prompt_sharing(49 + i, 70, 13, i), 80, static_cast<size_t>(i)));
    const auto results = run(cached.engine(), requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_TRUE(results[i] == cold(cached.folder(), config, requests[i])) << "budget " << budget << " request " << i;
    }
    if (budget == 64) {
      EXPECT_GT(cached.engine().stats().preemptions, 0);
    }
  }
}

// Odd chunks cut the ratio-2 groups of the halo and of the first rows behind the hit.
TEST(EnginePrefix, GroupsThatStraddleChunksAndHits) {
  for (const ReplayMode replay : {ReplayMode::kExact, ReplayMode::kBounded}) {
    for (const int64_t budget : {1, 3, 5, 7}) {
      EngineConfig config = config_of(replay, 2);
      config.max_num_batched_tokens = budget;
      config.max_num_seqs = 1;
      Cached cached(config);
      cached.serve(make_request(make_prompt(61, 14), 3));
      for (const int64_t shared : {57, 58, 59}) {
        EXPECT_EQ(cached.serve(make_request(
                      make_prompt_sharing(shared, shared + kLongSuffix, 14, static_cast<int32_t>(shared)), 4)),
                  shared / 2 * 2);
      }
    }
  }
}

TEST(EnginePrefix, RequestsThatReadEveryRowTakeNoHitAndLeaveOne) {
  Cached cached(config_of(ReplayMode::kBounded));
  Request request = make_request(make_prompt(60, 15), 3);
  request.sampling.prompt_logprobs = -1;
  EXPECT_EQ(cached.serve(request), 0);
  EXPECT_EQ(cached.serve(request), 0);
  EXPECT_EQ(cached.serve(make_request(make_prompt_sharing(60, 60 + kLongSuffix, 15, 1), 3)), 60);
}

// A bounded rebuild is an approximation and asked for by name: a request that asks for exact values then takes no hit,
// and gets what a cold engine gives; what others took is marked.
TEST(EnginePrefix, ExactRequestsTakeNothingApproximate) {
  EngineConfig config = config_of(ReplayMode::kBounded);
  config.prefix_rebuild = PrefixRebuild::kBounded;
  Cached cached(config);
  Request exact = make_request(make_prompt_sharing(60, 100, 16, 1), 5);
  exact.replay = ReplayMode::kExact;
  EXPECT_EQ(cached.serve(make_request(make_prompt(60, 16), 2)), 0);
  EXPECT_EQ(cached.serve(exact), 0);
  const auto bounded = run(cached.engine(), {make_request(make_prompt_sharing(60, 100, 16, 2), 5)}).front();
  EXPECT_EQ(bounded.metrics.cached_rows, 60);
  EXPECT_EQ(bounded.metrics.encoder_rows_run, 100 - (60 - 8));
  EXPECT_EQ(bounded.metrics.prefix_rebuild, PrefixRebuild::kBounded);
  EXPECT_EQ(cached.serve(exact), 0);
}

// As a user meets it: the default engine serves a prompt twice, and continues chats of which it knows the beginning.
// serve() compares each with a cold engine of the same mode.
TEST(EnginePrefix, TheDefaultKeepsARequestsResultItsOwn) {
  EngineConfig config = config_of(ReplayMode::kBounded);
  config.prefix_rebuild = EngineConfig{}.prefix_rebuild;
  Cached cached(config);
  const auto prompt = make_prompt(96, 21);
  EXPECT_EQ(cached.serve(make_request(prompt, 4)), 0);
  EXPECT_GT(cached.serve(make_request(prompt, 4)), 0);
  for (int64_t length = 110; length < 160; length += 10) {
    const Request turn = make_request(make_prompt_sharing(length - 14, length, 21, 3), 4);
    EXPECT_GT(cached.serve(turn), 0) << length;
  }
  const auto hit = run(cached.engine(), {make_request(prompt, 4)}).front();
  EXPECT_EQ(hit.metrics.prefix_rebuild, PrefixRebuild::kExact);
}

}  // namespace
}  // namespace reprise::testing
