// The laws of the engine over random schedules: what a request gets depends on the request alone, bit for bit, however
// its prompt is cut, whatever runs beside it and whenever it arrives; exact replay equals none.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "engine_harness.h"
#include "reprise/error.h"

namespace reprise::testing {
namespace {

constexpr int64_t kWindow = 8;  // of the tiny checkpoints
constexpr int64_t kNumTokens = 2 * kWindow + 1;

struct Setting {
  const char* checkpoint;
  Dtype dtype;
};

// Prompts of every length that has broken an engine before: around the window, the compress ratio and the page.
std::vector<std::vector<int32_t>> make_prompts(std::mt19937& random) {
  std::vector<std::vector<int32_t>> prompts;
  for (const int64_t length : {1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 40, 57}) {
    std::vector<int32_t> prompt(static_cast<size_t>(length));
    for (auto& id : prompt) id = std::uniform_int_distribution<int32_t>(3, 287)(random);
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// Every other request samples, seeded; the others are greedy.
Request make_request(const std::vector<int32_t>& prompt, size_t index) {
  Request request = greedy_request(prompt, kNumTokens);
  if (index % 2 == 1) {
    request.sampling.temperature = 0.8;
    request.sampling.top_p = 0.9;
    request.sampling.seed = index;
  }
  return request;
}

int num_schedules(int share) {
  // 300 in all by default; REPRISE_SCHEDULES=10000 for the long sweep.
  const char* wanted = std::getenv("REPRISE_SCHEDULES");
  return std::max(1, (wanted != nullptr ? std::atoi(wanted) : 300) / share);
}

template <typename T>
T pick(std::mt19937& random, std::initializer_list<T> values) {
  return values.begin()[std::uniform_int_distribution<size_t>(0, values.size() - 1)(random)];
}

class EngineLawsTest : public ::testing::TestWithParam<Setting> {
 protected:
  EngineConfig config(ReplayMode replay) const {
    EngineConfig config = tiny_config(GetParam().checkpoint);
    config.dtype = GetParam().dtype;
    config.replay = replay;
    return config;
  }
};

// Runs the chosen requests with arrivals spread over the first steps.
std::vector<Generated> run_schedule(Engine& engine, const std::vector<Request>& requests, std::mt19937& random) {
  std::map<RequestId, size_t> places;
  std::vector<Generated> results(requests.size());
  while (places.size() < requests.size() || engine.has_unfinished()) {
    while (places.size() < requests.size() && (!engine.has_unfinished() || random() % 3 != 0)) {
      const size_t next = places.size();
      places.emplace(engine.submit(requests[next]), next);
    }
    for (const auto& output : checked_step(engine)) take(output, results.at(places.at(output.id)));
  }
  return results;
}

TEST_P(EngineLawsTest, ResultsDependOnTheRequestAlone) {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  SCOPED_TRACE(concat("seed ", seed));
  const auto prompts = make_prompts(random);
  // What each request gets alone, its prompt in one piece: off is what exact must equal.
  std::map<ReplayMode, std::vector<Generated>> alone;
  for (const ReplayMode replay : {ReplayMode::kOff, ReplayMode::kBounded}) {
    const auto engine = Engine::load(data_path(GetParam().checkpoint), config(replay));
    for (size_t i = 0; i < prompts.size(); ++i)
      alone[replay].push_back(run(*engine, {make_request(prompts[i], i)}).front());
  }
  const int schedules = num_schedules(4);
  for (int n = 0; n < schedules; ++n) {
    EngineConfig c = config(pick(random, {ReplayMode::kOff, ReplayMode::kBounded, ReplayMode::kExact}));
    c.max_num_seqs = pick(random, {1, 2, 3, 8});
    c.max_num_batched_tokens = pick(random, {1, 2, 3, 7, 8, 9, 13, 31, 97, 2048});
    c.page_size = pick(random, {2, 4, 8, 16, 64});
    c.num_threads = n % 25 == 0 ? 2 : 1;
    const auto engine = Engine::load(data_path(GetParam().checkpoint), c);
    std::vector<Request> requests;
    std::vector<size_t> chosen;
    for (int count = pick(random, {1, 2, 4}); count > 0; --count) {
      chosen.push_back(random() % prompts.size());
      requests.push_back(make_request(prompts[chosen.back()], chosen.back()));
      // One engine runs requests of several modes.
      if (random() % 4 == 0)
        requests.back().replay = pick(random, {ReplayMode::kOff, ReplayMode::kBounded, ReplayMode::kExact});
    }
    const auto results = run_schedule(*engine, requests, random);
    for (size_t i = 0; i < results.size(); ++i) {
      const ReplayMode mode = requests[i].replay.value_or(c.replay);
      const auto& want = alone.at(mode == ReplayMode::kExact ? ReplayMode::kOff : mode)[chosen[i]];
      ASSERT_TRUE(results[i] == want) << "schedule " << n << ", request " << i << " of " << prompts[chosen[i]].size()
                                      << " tokens, mode " << static_cast<int>(mode) << ", budget "
                                      << c.max_num_batched_tokens << ", page " << c.page_size << ", threads "
                                      << c.num_threads;
      EXPECT_EQ(results[i].tokens.size(), static_cast<size_t>(kNumTokens));
    }
    const auto stats = engine->stats();
    for (const auto& group : stats.cache_groups) EXPECT_EQ(group.free_pages, group.num_pages) << group.name;
  }
}

// Feeding a continuation as part of the prompt gives the rows that decoding gave.
TEST_P(EngineLawsTest, DecodeEqualsPrefill) {
  std::mt19937 random(7);
  const auto engine = Engine::load(data_path(GetParam().checkpoint), config(ReplayMode::kOff));
  for (const auto& prompt : make_prompts(random)) {
    const Generated decoded = run(*engine, {greedy_request(prompt, kNumTokens)}).front();
    std::vector<int32_t> whole = prompt;
    whole.insert(whole.end(), decoded.tokens.begin(), decoded.tokens.end() - 1);
    Request request = greedy_request(whole, 1);
    request.sampling.prompt_logprobs = -1;
    const Generated prefilled = run(*engine, {request}).front();
    for (size_t i = 0; i + 1 < decoded.logprobs.size(); ++i) {
      ASSERT_EQ(decoded.logprobs[i], prefilled.prompt_logprobs[prompt.size() - 1 + i])
          << "prompt " << prompt.size() << " token " << i;
    }
    ASSERT_EQ(decoded.logprobs.back(), prefilled.logprobs.front());
  }
}

TEST_P(EngineLawsTest, BoundedEqualsOffUpToTheWindow) {
  std::mt19937 random(11);
  const auto off = Engine::load(data_path(GetParam().checkpoint), config(ReplayMode::kOff));
  const auto bounded = Engine::load(data_path(GetParam().checkpoint), config(ReplayMode::kBounded));
  bool differs_beyond = false;
  for (const auto& prompt : make_prompts(random)) {
    const auto a = run(*off, {greedy_request(prompt, kNumTokens)}).front();
    const auto b = run(*bounded, {greedy_request(prompt, kNumTokens)}).front();
    if (static_cast<int64_t>(prompt.size()) <= kWindow) {
      EXPECT_TRUE(a == b) << prompt.size();
    } else {
      differs_beyond |= !(a == b);
    }
  }
  EXPECT_TRUE(differs_beyond) << "bounded is an approximation; if it never shows, it did not run";
}

// The table of the replay modes, whatever the chunks: 4 replay layers, W = 8.
TEST_P(EngineLawsTest, ReplayRowsStayWithinTheTable) {
  std::mt19937 random(13);
  const int64_t layers = 4;
  for (const int64_t budget : {1, 7, 8, 9, 13, 2048}) {
    for (const ReplayMode replay : {ReplayMode::kBounded, ReplayMode::kExact}) {
      EngineConfig c = config(replay);
      c.max_num_seqs = 1;
      c.max_num_batched_tokens = budget;
      const auto engine = Engine::load(data_path(GetParam().checkpoint), c);
      for (const auto& prompt : make_prompts(random)) {
        const auto length = static_cast<int64_t>(prompt.size());
        const auto metrics = run(*engine, {greedy_request(prompt, 2)}).front().metrics;
        ASSERT_EQ(static_cast<int64_t>(metrics.replay_rows_by_layer.size()), layers);
        for (int64_t k = 1; k <= layers; ++k) {
          const int64_t bound = replay == ReplayMode::kBounded ? kWindow : 1 + (layers - k) * (kWindow - 1);
          EXPECT_LE(metrics.replay_rows_by_layer[static_cast<size_t>(k - 1)], std::min(length, bound))
              << "length " << length << " budget " << budget << " layer " << k;
        }
        EXPECT_EQ(metrics.replay_rows_by_layer.back(), 1);
        EXPECT_EQ(metrics.encoder_rows_run, length);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, EngineLawsTest,
                         ::testing::Values(Setting{"v41-tiny", Dtype::kFloat32}, Setting{"v41-tiny", Dtype::kBFloat16},
                                           Setting{"v41-tiny-engram", Dtype::kFloat32},
                                           Setting{"v41-tiny-quant", Dtype::kBFloat16}));

}  // namespace
}  // namespace reprise::testing
