// Chunks, batches and pages that broke other engines: each request's logits equal, bit for bit, what it gets alone.
#include "engine_cases.h"
#include "reprise/engine.h"

namespace reprise::testing {
namespace {

constexpr const char* kCheckpoint = "v41-tiny";  // W 8, ratios 2 and 1
constexpr std::initializer_list<ReplayMode> kModes = {ReplayMode::kOff, ReplayMode::kExact, ReplayMode::kBounded};

EngineConfig config_of(ReplayMode replay, int64_t budget, int64_t page_size = 4) {
  EngineConfig config = tiny_config(kCheckpoint);
  config.replay = replay;
  config.max_num_batched_tokens = budget;
  config.max_num_seqs = std::min<int64_t>(8, budget);  // the engine raises the budget to it
  config.page_size = page_size;
  config.max_model_len = 1280;
  return config;
}

// Runs the requests together; each must get what it gets alone.
void expect_as_alone(const EngineConfig& config, const std::vector<Request>& requests,
                     const std::string& checkpoint_dir = data_path(kCheckpoint)) {
  const auto engine = Engine::load(checkpoint_dir, config);
  const auto results = run(*engine, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(results[i] == cold(checkpoint_dir, config, requests[i]))
        << "prompt of " << requests[i].prompt_token_ids.size() << " tokens, budget " << config.max_num_batched_tokens
        << ", page " << config.page_size << ", replay " << static_cast<int>(config.replay);
  }
  expect_all_pages_free(*engine);
}

TEST(EngineBatching, ALastChunkOfOneTokenIsPrefill) {
  for (const ReplayMode replay : kModes) {
    for (const int64_t length : {9, 17}) {
      const Request request = make_request(make_prompt(length, 1), 6);
      expect_as_alone(config_of(replay, 8), {request});
      const auto chunked = run(*Engine::load(data_path(kCheckpoint), config_of(replay, 8)), {request}).front().metrics;
      const auto whole = run(*Engine::load(data_path(kCheckpoint), config_of(replay, 64)), {request}).front().metrics;
      EXPECT_EQ(chunked.encoder_rows_run, length);
      EXPECT_EQ(chunked.replay_rows_by_layer, whole.replay_rows_by_layer) << length;
    }
  }
}

TEST(EngineBatching, PromptsOneLongerThanTheirChunks) {
  for (const ReplayMode replay : kModes) {
    for (const int64_t chunk : {2, 7, 8, 16}) {
      for (const int64_t k : {1, 2, 3}) {
        expect_as_alone(config_of(replay, chunk), {make_request(make_prompt(k * chunk + 1, 2), 4)});
      }
    }
    expect_as_alone(config_of(replay, 512, 64), {make_request(make_prompt(513, 3), 4)});
  }
}

// Budget 7 beside six decodes: the prompt of nine gets 7, 1 and 1 rows.
TEST(EngineBatching, ChunksOfWindowMinusOneThenOneAndOne) {
  for (const ReplayMode replay : kModes) {
    const EngineConfig config = config_of(replay, 7);
    const auto engine = Engine::load(data_path(kCheckpoint), config);
    const Request request = make_request(make_prompt(9, 4), 9);
    Generated result;
    const RequestId id = engine->submit(request);
    std::vector<int64_t> rows;
    int64_t before = 0;
    const auto step = [&] {
      for (const auto& output : checked_step(*engine)) {
        if (output.id == id) take(output, result);
      }
      rows.push_back(engine->stats().encoder_rows_run - before);
      before += rows.back();
    };
    step();
    for (int i = 0; i < 6; ++i) {
      Request other = make_request(make_prompt(1, static_cast<unsigned>(i)), 40);
      other.priority = -1;
      engine->submit(other);
    }
    while (engine->has_unfinished()) step();
    EXPECT_EQ((std::vector<int64_t>{rows[0], rows[1], rows[2], rows[3]}), (std::vector<int64_t>{7, 6 + 1, 1, 0}));
    EXPECT_TRUE(result == cold(data_path(kCheckpoint), config, request));
  }
}

// As W 128 and pages of 256 with lengths 255..258 and 383..385, here and scaled down.
TEST(EngineBatching, PagesLargerThanTheWindow) {
  const CheckpointWithWindow wide(kCheckpoint, 128);
  for (const ReplayMode replay : {ReplayMode::kOff, ReplayMode::kBounded}) {
    std::vector<Request> requests, small;
    for (const int64_t length : {255, 256, 257, 258, 383, 384, 385}) {
      requests.push_back(make_request(make_prompt(length, 5), 5, requests.size()));
    }
    for (const int64_t length : {15, 16, 17, 18, 23, 24, 25}) {
      small.push_back(make_request(make_prompt(length, 6), 20, small.size()));
    }
    expect_as_alone(config_of(replay, 300, 256), requests, wide.path());
    for (const int64_t budget : {3, 16, 40}) expect_as_alone(config_of(replay, budget, 16), small);
  }
}

// W 127, page 64: 127 live rows, no page more than they touch and none of them given back (cells that are carry NaN).
TEST(EngineBatching, AnOddWindowKeepsItsRowsAndNoPageMore) {
  const int64_t window = 127, page = 64, length = 1024, generated = 70;
  const CheckpointWithWindow checkpoint(kCheckpoint, window);
  EngineConfig config = config_of(ReplayMode::kOff, 200, page);
  const auto engine = Engine::load(checkpoint.path(), config);
  const Request request = make_request(make_prompt(length, 7), generated);
  Generated result;
  engine->submit(request);
  while (engine->has_unfinished()) {
    for (const auto& output : checked_step(*engine)) take(output, result);
    const auto tokens = static_cast<int64_t>(result.tokens.size());
    if (tokens == 0 || tokens == generated) continue;
    const int64_t rows = length + tokens - 1;  // the newest token has not run
    EXPECT_EQ(pages_in_use(*engine, "window"), (rows + page - 1) / page - (rows - window) / page) << rows;
  }
  EXPECT_TRUE(result == cold(checkpoint.path(), config, request));
}

TEST(EngineBatching, ALongPromptBesideGrowingDecodesFinishes) {
  for (const ReplayMode replay : kModes) {
    EngineConfig config = config_of(replay, 9);
    const auto engine = Engine::load(data_path(kCheckpoint), config);
    std::map<RequestId, Generated> results;
    std::map<RequestId, Request> requests;
    const auto submit = [&](Request request) { requests.emplace(engine->submit(request), request); };
    for (unsigned i = 0; i < 6; ++i) submit(make_request(make_prompt(1 + i, i), 30 + 3 * i, i));
    submit(make_request(make_prompt(200, 9), 5));
    int64_t steps = 0;
    while (engine->has_unfinished()) {
      for (const auto& output : checked_step(*engine)) take(output, results[output.id]);
      ASSERT_LT(++steps, 300) << "the long prompt starves";
    }
    for (const auto& [id, request] : requests) {
      EXPECT_TRUE(results[id] == cold(data_path(kCheckpoint), config, request)) << request.prompt_token_ids.size();
    }
  }
}

TEST(EngineBatching, OneRequestLongerThanTheOthersByMoreThanTheBudget) {
  for (const ReplayMode replay : kModes) {
    std::vector<Request> requests;
    for (const int64_t length : {3, 40, 3, 2})
      requests.push_back(make_request(make_prompt(length, 10), 6, requests.size()));
    expect_as_alone(config_of(replay, 8), requests);
  }
}

TEST(EngineBatching, BatchesOfDecodesOnlyOfPromptsOnlyAndNone) {
  const auto engine = Engine::load(data_path(kCheckpoint), config_of(ReplayMode::kBounded, 64));
  EXPECT_TRUE(checked_step(*engine).empty());
  std::vector<Request> requests;
  std::map<RequestId, Generated> results;
  std::vector<RequestId> ids;
  for (const int64_t length : {9, 20, 30}) {
    requests.push_back(make_request(make_prompt(length, 11), 4, requests.size()));
    ids.push_back(engine->submit(requests.back()));
  }
  for (int step = 0; step < 4; ++step) {  // one of 59 prompt rows, three of three decodes
    const auto outputs = checked_step(*engine);
    ASSERT_EQ(outputs.size(), 3u);
    EXPECT_EQ(engine->stats().encoder_rows_run, 59);
    for (const auto& output : outputs) {
      EXPECT_EQ(output.new_token_ids.size(), 1u);
      take(output, results[output.id]);
    }
  }
  EXPECT_FALSE(engine->has_unfinished());
  EXPECT_TRUE(checked_step(*engine).empty());
  EXPECT_EQ(engine->stats().steps, 4);
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_TRUE(results[ids[i]] == cold(data_path(kCheckpoint), engine->config(), requests[i]));
  }
}

TEST(EngineBatching, NoTokenOneTokenAndTwo) {
  for (const ReplayMode replay : kModes) {
    for (const int64_t budget : {8, 64}) {
      const auto engine = Engine::load(data_path(kCheckpoint), config_of(replay, budget));
      const auto prompt = make_prompt(17, 12);
      std::vector<Request> requests;
      for (const int64_t max_tokens : {0, 1, 2, 5}) requests.push_back(make_request(prompt, max_tokens));
      const auto results = run(*engine, requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        const auto count = static_cast<size_t>(requests[i].sampling.max_tokens);
        EXPECT_EQ(results[i].finish_reason, FinishReason::kLength);
        ASSERT_EQ(results[i].tokens.size(), count);
        for (size_t t = 0; t < count; ++t) EXPECT_EQ(results[i].logprobs[t], results[3].logprobs[t]);
      }
      EXPECT_TRUE(results[3] == cold(data_path(kCheckpoint), engine->config(), requests[3]));
      expect_all_pages_free(*engine);
    }
  }
}

TEST(EngineBatching, NoTokenStillGivesThePromptsLogprobs) {
  const auto engine = Engine::load(data_path(kCheckpoint), config_of(ReplayMode::kBounded, 8));
  Request request = make_request(make_prompt(17, 12), 0);
  request.sampling.prompt_logprobs = -1;
  const auto result = run(*engine, {request}).front();
  EXPECT_EQ(result.prompt_logprobs.size(), 16u);
  EXPECT_TRUE(result == cold(data_path(kCheckpoint), engine->config(), request));
}

// Two slots, reused 200 times; the prompts cover every remainder of page and ratio.
TEST(EngineBatching, SlotsAreReusedWithoutATrace) {
  EngineConfig config = config_of(ReplayMode::kExact, 16);
  config.max_num_seqs = 2;
  const auto engine = Engine::load(data_path(kCheckpoint), config);
  const Request request = make_request(make_prompt(21, 13), 4);
  const Generated want = cold(data_path(kCheckpoint), config, request);
  for (unsigned i = 0; i < 100; ++i) {
    const Request other = make_request(make_prompt(1 + i % 33, i), 1 + i % 5, i);
    const auto results = run(*engine, {request, other, request});
    ASSERT_TRUE(results[0] == want && results[2] == want) << "round " << i;
  }
  expect_all_pages_free(*engine);
}

// Ratio-2 groups whose two tokens lie in different chunks and pages: an odd budget beside pages of two.
TEST(EngineBatching, GroupsThatStraddleChunksAndPages) {
  for (const ReplayMode replay : kModes) {
    for (const int64_t budget : {1, 3, 5, 9}) {
      for (const int64_t page : {2, 4, 6}) {
        std::vector<Request> requests;
        for (const int64_t length : {2, 3, 10, 21}) {
          requests.push_back(make_request(make_prompt(length, 14), 5, requests.size()));
        }
        expect_as_alone(config_of(replay, budget, page), requests);
      }
    }
  }
}

}  // namespace
}  // namespace reprise::testing
