#include "runtime/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace reprise {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

std::map<int32_t, double> frequencies(const std::vector<float>& logits, const SamplingParams& params,
                                      int draws = 20000) {
  std::map<int32_t, double> counts;
  for (int i = 0; i < draws; ++i) counts[sample_row(logits, params, 1234, i).token] += 1.0 / draws;
  return counts;
}

void expect_frequencies(const std::map<int32_t, double>& seen, const std::map<int32_t, double>& wanted) {
  for (const auto& [token, frequency] : seen) EXPECT_TRUE(wanted.contains(token)) << "token " << token << " was cut";
  // 20000 draws: the standard deviation of a frequency is at most 0.0036.
  for (const auto& [token, p] : wanted) {
    EXPECT_NEAR(seen.contains(token) ? seen.at(token) : 0.0, p, 0.018) << "token " << token;
  }
}

TEST(UniformDraw, MatchesPhiloxKnownAnswer) {
  // Random123's known answer for key 0, counter 0: 6627e8d5 e169c58d bc57ac4c 9b00dbd8.
  EXPECT_EQ(uniform_draw(0, 0), static_cast<double>(0x6627e8d5e169c58dULL >> 11) / 9007199254740992.0);
}

TEST(UniformDraw, IsUniformOverSeedsAndOverPositions) {
  for (const bool by_seed : {true, false}) {
    std::vector<int> bins(10);
    double sum = 0;
    for (uint64_t i = 0; i < 20000; ++i) {
      const double u = by_seed ? uniform_draw(i, 3) : uniform_draw(3, i);
      ASSERT_GE(u, 0.0);
      ASSERT_LT(u, 1.0);
      ++bins[static_cast<size_t>(u * 10)];
      sum += u;
    }
    EXPECT_NEAR(sum / 20000, 0.5, 0.01);
    for (const int count : bins) EXPECT_NEAR(count, 2000, 5 * std::sqrt(2000 * 0.9));
  }
}

TEST(SampleRow, GreedyTakesTheLowestIdAmongEquals) {
  SamplingParams greedy;
  greedy.temperature = 0;
  EXPECT_EQ(sample_row(std::vector<float>{1, 3, 3, 2}, greedy, 0, 0).token, 1);
  EXPECT_EQ(sample_row(std::vector<float>{-kInfinity, -5, -kInfinity}, greedy, 9, 7).token, 1);
}

TEST(SampleRow, FollowsTheSoftmax) {
  const SamplingParams params;
  expect_frequencies(frequencies(logits_of({0.5, 0.2, 0.05, 0.25}), params),
                     {{0, 0.5}, {1, 0.2}, {2, 0.05}, {3, 0.25}});
}

TEST(SampleRow, TemperatureRescalesLogits) {
  SamplingParams params;
  params.temperature = 0.5;  // squares the probabilities: .25 .04 .01 -> / .30
  expect_frequencies(frequencies(logits_of({0.5, 0.2, 0.1}), params),
                     {{0, 0.25 / 0.3}, {1, 0.04 / 0.3}, {2, 0.01 / 0.3}});
  params.temperature = 2;  // square roots of .64 .16 .04: .8 .4 .2 -> / 1.4
  expect_frequencies(frequencies(logits_of({0.64, 0.16, 0.04}), params),
                     {{0, 0.8 / 1.4}, {1, 0.4 / 1.4}, {2, 0.2 / 1.4}});
}

TEST(SampleRow, TopKKeepsTheKMostLikely) {
  SamplingParams params;
  params.top_k = 2;
  expect_frequencies(frequencies(logits_of({0.1, 0.3, 0.2, 0.4}), params), {{1, 3.0 / 7}, {3, 4.0 / 7}});
  params.top_k = 1;
  expect_frequencies(frequencies({2, 5, 5, 5}, params), {{1, 1.0}});  // equal at the cut: the lowest id stays
}

TEST(SampleRow, TopPKeepsTheSmallestSetThatReachesIt) {
  SamplingParams params;
  params.top_p = 0.6;  // .5 alone falls short, .5 + .3 reaches it
  expect_frequencies(frequencies(logits_of({0.5, 0.15, 0.3, 0.05}), params), {{0, 5.0 / 8}, {2, 3.0 / 8}});
  params.top_p = 1e-9;
  expect_frequencies(frequencies(logits_of({0.2, 0.5, 0.3}), params), {{1, 1.0}});
}

TEST(SampleRow, MinPKeepsAShareOfTheMostLikely) {
  SamplingParams params;
  params.min_p = 0.3;  // threshold .3 * .5 = .15
  expect_frequencies(frequencies(logits_of({0.5, 0.2, 0.14, 0.16}), params),
                     {{0, 0.5 / 0.86}, {1, 0.2 / 0.86}, {3, 0.16 / 0.86}});
}

TEST(SampleRow, FiltersActInOrder) {
  SamplingParams params;
  // top_k first leaves .5 .3 (renormalised .625 .375), so top_p .6 keeps the first alone; top_p first would keep both.
  params.top_k = 2;
  params.top_p = 0.6;
  expect_frequencies(frequencies(logits_of({0.5, 0.3, 0.15, 0.05}), params), {{0, 1.0}});
  // min_p works on the tempered distribution: at temperature 2, .64 .16 .04 become .8 .4 .2 and the threshold is .8 *
  // .3.
  SamplingParams tempered;
  tempered.temperature = 2;
  tempered.min_p = 0.3;
  expect_frequencies(frequencies(logits_of({0.64, 0.16, 0.04}), tempered), {{0, 2.0 / 3}, {1, 1.0 / 3}});
}

TEST(SampleRow, AFilterThatRemovesNothingChangesNoDraw) {
  std::mt19937 generator(5);
  std::normal_distribution<float> normal;
  std::vector<float> logits(300);
  for (float& x : logits) x = normal(generator);
  SamplingParams off, no_op;
  no_op.top_k = 300;
  no_op.top_p = 1.0;
  for (uint64_t i = 0; i < 200; ++i)
    EXPECT_EQ(sample_row(logits, off, i, 0).token, sample_row(logits, no_op, i, 0).token);
}

TEST(SampleRow, DependsOnSeedAndPositionOnly) {
  const std::vector<float> logits(64, 0.0f);
  const SamplingParams params;
  std::set<int32_t> by_position, by_seed;
  for (uint64_t i = 0; i < 40; ++i) {
    const int32_t token = sample_row(logits, params, 7, i).token;
    sample_row(std::vector<float>{1, 2, 3}, params, i, 99);  // another request in between
    EXPECT_EQ(sample_row(logits, params, 7, i).token, token);
    by_position.insert(token);
    by_seed.insert(sample_row(logits, params, i, 7).token);
  }
  EXPECT_GT(by_position.size(), 20u);
  EXPECT_GT(by_seed.size(), 20u);
}

TEST(SampleRow, NeverDrawsAMaskedToken) {
  const std::vector<float> logits{-kInfinity, 0, -kInfinity, 0, -kInfinity};
  expect_frequencies(frequencies(logits, SamplingParams{}), {{1, 0.5}, {3, 0.5}});
  SamplingParams filtered;
  filtered.top_k = 4;
  filtered.top_p = 0.999;
  expect_frequencies(frequencies(logits, filtered), {{1, 0.5}, {3, 0.5}});
}

TEST(SampleRow, ExtremeTemperaturesStayFinite) {
  SamplingParams params;
  params.temperature = 1e-30;
  expect_frequencies(frequencies({100, -100, 99.99f}, params, 100), {{0, 1.0}});
  params.temperature = 1e30;
  expect_frequencies(frequencies({100, -100, 99}, params), {{0, 1.0 / 3}, {1, 1.0 / 3}, {2, 1.0 / 3}});
}

TEST(SampleRow, RefusesRowsThatAreNoDistribution) {
  for (const float temperature : {0.0f, 1.0f}) {
    SamplingParams params;
    params.temperature = temperature;
    EXPECT_THROW(sample_row(std::vector<float>{0, kNan, 1}, params, 0, 0), std::runtime_error);
    EXPECT_THROW(sample_row(std::vector<float>{kNan, 0, 1}, params, 0, 0), std::runtime_error);
    EXPECT_THROW(sample_row(std::vector<float>{0, kInfinity, 1}, params, 0, 0), std::runtime_error);
    EXPECT_THROW(sample_row(std::vector<float>{-kInfinity, -kInfinity}, params, 0, 0), std::runtime_error);
    EXPECT_EQ(sample_row(std::vector<float>{0, -kInfinity}, params, 0, 0).token, 0);  // the next row is unharmed
  }
}

TEST(Logprobs, AreTheLogSoftmaxOfRawLogits) {
  SamplingParams params;
  params.temperature = 0;
  params.logprobs = 2;
  const TokenLogprobs entries = sample_row(logits_of({0.1, 0.4, 0.2, 0.3}), params, 0, 0).logprobs;
  ASSERT_EQ(entries.size(), 2u);  // the chosen token is one of the two most likely
  EXPECT_EQ(entries[0].token_id, 1);
  EXPECT_EQ(entries[0].rank, 1);
  EXPECT_NEAR(entries[0].logprob, std::log(0.4), 1e-6);
  EXPECT_EQ(entries[1].token_id, 3);
  EXPECT_EQ(entries[1].rank, 2);
  EXPECT_NEAR(entries[1].logprob, std::log(0.3), 1e-6);
}

TEST(Logprobs, TheTokenItselfComesFirst) {
  const std::vector<float> logits = logits_of({0.1, 0.4, 0.2, 0.3});
  const TokenLogprobs entries = logprobs_of(logits, 0, 2);
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].token_id, 0);
  EXPECT_EQ(entries[0].rank, 4);
  EXPECT_NEAR(entries[0].logprob, std::log(0.1), 1e-6);
  EXPECT_EQ(entries[1].token_id, 1);
  EXPECT_EQ(entries[2].token_id, 3);
  EXPECT_EQ(logprobs_of(logits, 2, 0).size(), 1u);
  EXPECT_EQ(logprobs_of(logits, 2, 0)[0].rank, 3);
}

TEST(Logprobs, MinusOneListsTheWholeVocabulary) {
  std::mt19937 generator(11);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(257);
  for (float& x : logits) x = std::round(normal(generator));  // many equal logits
  const TokenLogprobs entries = logprobs_of(logits, 42, -1);
  ASSERT_EQ(entries.size(), 257u);
  std::vector<int32_t> order(257);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  double total = 0;
  for (const float x : logits) total += std::exp(static_cast<double>(x));
  double mass = 0;
  std::vector<int32_t> others = order;
  std::erase(others, 42);
  EXPECT_EQ(entries[0].token_id, 42);
  EXPECT_EQ(order[entries[0].rank - 1], 42);
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) {
      EXPECT_EQ(entries[i].token_id, others[i - 1]);
    }
    EXPECT_EQ(order[entries[i].rank - 1], entries[i].token_id);
    EXPECT_NEAR(entries[i].logprob, logits[entries[i].token_id] - std::log(total), 1e-5);
    mass += std::exp(static_cast<double>(entries[i].logprob));
  }
  EXPECT_NEAR(mass, 1.0, 1e-5);
}

TEST(Logprobs, IgnoreTemperatureAndFilters) {
  SamplingParams params;
  params.temperature = 3;
  params.top_k = 1;
  params.logprobs = 3;
  const TokenLogprobs entries = sample_row(logits_of({0.7, 0.2, 0.1}), params, 0, 0).logprobs;
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_NEAR(entries[2].logprob, std::log(0.1), 1e-6);
}

TEST(CheckSamplingParams, NamesTheFieldAndTheValue) {
  const auto message = [](auto&& change) -> std::string {
    SamplingParams params;
    change(params);
    try {
      check_sampling_params(params, 100);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  using P = SamplingParams;
  EXPECT_EQ(message([](P&) {}), "");
  EXPECT_NE(message([](P& p) { p.temperature = NAN; }).find("temperature >= 0 (0 = greedy) but got nan"),
            std::string::npos);
  EXPECT_NE(message([](P& p) { p.temperature = -0.5; }).find("got -0.5"), std::string::npos);
  EXPECT_NE(message([](P& p) { p.temperature = INFINITY; }).find("temperature"), std::string::npos);
  EXPECT_NE(message([](P& p) { p.top_p = 0; }).find("top_p"), std::string::npos);
  EXPECT_NE(message([](P& p) { p.top_p = 1.01; }).find("top_p"), std::string::npos);
  EXPECT_NE(message([](P& p) { p.top_p = NAN; }).find("top_p"), std::string::npos);
  EXPECT_NE(message([](P& p) { p.top_k = -2; }).find("top_k"), std::string::npos);
  EXPECT_NE(message([](P& p) { p.min_p = -0.1; }).find("min_p"), std::string::npos);
  EXPECT_NE(message([](P& p) { p.min_p = NAN; }).find("min_p"), std::string::npos);
  EXPECT_NE(message([](P& p) { p.max_tokens = -1; }).find("max_tokens"), std::string::npos);
  EXPECT_NE(message([](P& p) { p.logprobs = 101; }).find("logprobs from 0"), std::string::npos);
  EXPECT_NE(message([](P& p) { p.prompt_logprobs = -2; }).find("prompt_logprobs"), std::string::npos);
  EXPECT_NE(message([](P& p) { p.stop_token_ids = {5, 100}; }).find("[0, 100) but got 100"), std::string::npos);
  EXPECT_NE(message([](P& p) { p.stop_token_ids = {-1}; }).find("stop_token_ids"), std::string::npos);
  EXPECT_EQ(message([](P& p) {
              p.max_tokens = 0;
              p.temperature = 0;
              p.top_k = -1;
              p.logprobs = -1;
              p.prompt_logprobs = 100;
              p.stop_token_ids = {0, 99};
            }),
            "");
}

}  // namespace
}  // namespace reprise
