// The seam for other families: a decoder that shares nothing with DeepSeek-V4.1 runs through the whole engine.
#include "toy_family.h"

#include <gtest/gtest.h>

#include <random>

#include "../checkpoint/safetensors_bytes.h"
#include "../temporary_folder.h"
#include "engine_cases.h"
#include "reprise/error.h"
#include "runtime/load_engine.h"

namespace reprise::testing {
namespace {

std::vector<float> toy_embedding() {
  std::mt19937 random(11);
  std::vector<float> values(kToyVocab * kToyHidden);
  for (float& value : values) value = std::normal_distribution<float>()(random);
  return values;
}

// Greedy tokens by the plain formula, one row after another, without caches.
std::vector<int32_t> expected_tokens(std::vector<int32_t> tokens, int64_t count) {
  const std::vector<float> embedding = toy_embedding();
  const auto vector_of = [&](int32_t token, int64_t h) {
    return static_cast<double>(embedding[static_cast<size_t>(token * kToyHidden + h)]);
  };
  std::vector<int32_t> generated;
  while (static_cast<int64_t>(generated.size()) < count) {
    const auto last = static_cast<int64_t>(tokens.size()) - 1;
    std::vector<double> hidden;
    for (int64_t h = 0; h < kToyHidden; ++h) {
      double sum = vector_of(tokens.back(), h);
      for (int64_t p = 0; p <= last; ++p) {
        const double distance = static_cast<double>(last - p);
        sum += vector_of(tokens[static_cast<size_t>(p)], h) * (1 / (1 + distance) + 1 / (2 + distance));
      }
      hidden.push_back(sum);
    }
    int32_t best = 0;
    double best_logit = -1e30;
    for (int32_t token = 0; token < kToyVocab; ++token) {
      double logit = 0;
      for (int64_t h = 0; h < kToyHidden; ++h) logit += hidden[static_cast<size_t>(h)] * vector_of(token, h);
      if (logit > best_logit) std::tie(best, best_logit) = std::pair(token, logit);
    }
    generated.push_back(best);
    tokens.push_back(best);
  }
  return generated;
}

class ToyFamilyTest : public ::testing::Test {
 protected:
  ToyFamilyTest() {
    const std::vector<float> embedding = toy_embedding();
    const auto* bytes = reinterpret_cast<const char*>(embedding.data());
    folder_.write("config.json", R"({"model_type": "toy"})");
    folder_.write("model.safetensors",
                  safetensors_bytes({{"embed.weight",
                                      "F32",
                                      {kToyVocab, kToyHidden},
                                      std::string(bytes, bytes + embedding.size() * sizeof(float))}}));
  }

  std::unique_ptr<Engine> load(EngineConfig config) const {
    config.page_size = 4;
    config.max_num_seqs = 4;
    config.poison_cache = true;
    config.num_threads = 1;
    return load_engine(folder_.path(), config, toy_families());
  }

  TemporaryFolder folder_;
};

std::vector<int32_t> toy_prompt(int64_t length, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < length; ++i) prompt.push_back(static_cast<int32_t>(random() % kToyVocab));
  return prompt;
}

TEST_F(ToyFamilyTest, EveryModeGivesThePlainFormulasTokens) {
  for (const ReplayMode replay : {ReplayMode::kOff, ReplayMode::kExact, ReplayMode::kLastRow}) {
    for (const int64_t budget : {5, 64}) {
      EngineConfig config;
      config.replay = replay;
      config.max_num_batched_tokens = budget;
      config.graph_buckets = {2, 4};
      const auto engine = load(config);
      std::vector<Request> requests;
      for (const int64_t length : {1, 9, 22}) requests.push_back(greedy_request(toy_prompt(length, 5), 6));
      const auto results = run(*engine, requests);
      for (size_t i = 0; i < results.size(); ++i) {
        EXPECT_EQ(results[i].tokens, expected_tokens(requests[i].prompt_token_ids, 6)) << i;
        const int64_t rows = replay == ReplayMode::kOff ? static_cast<int64_t>(requests[i].prompt_token_ids.size()) : 1;
        EXPECT_EQ(results[i].metrics.replay_rows_by_layer, std::vector<int64_t>{rows});
        EXPECT_EQ(results[i].metrics.replay_mode, replay);
      }
      expect_all_pages_free(*engine);
    }
  }
}

// The only group is cached as a whole, so behind a hit no row runs a second time.
TEST_F(ToyFamilyTest, APrefixIsTakenWithoutAHalo) {
  EngineConfig config;
  config.replay = ReplayMode::kLastRow;
  config.enable_prefix_caching = true;
  const auto engine = load(config);
  const auto prompt = toy_prompt(30, 7);
  run(*engine, {greedy_request(prompt, 2)});
  const auto again = run(*engine, {greedy_request(prompt, 5)}).front();
  EXPECT_EQ(again.tokens, expected_tokens(prompt, 5));
  EXPECT_EQ(again.metrics.cached_rows, 28);
  EXPECT_EQ(again.metrics.encoder_rows_run, 2);
}

TEST_F(ToyFamilyTest, StatsNameItsGroupAndOthersDoNotReadIt) {
  const auto engine = load({});
  ASSERT_EQ(engine->stats().cache_groups.size(), 1u);
  EXPECT_EQ(engine->stats().cache_groups[0].name, "shared");
  EXPECT_EQ(engine->model_facts().model_type, "toy");
  EXPECT_TRUE(says(complaint([&] { Engine::load(folder_.path()); }), "wanted model_type deepseek_v41"));
}

}  // namespace
}  // namespace reprise::testing
