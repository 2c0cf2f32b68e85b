// The engine against the golden checkpoints: values of an independent implementation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine_harness.h"
#include "reprise/error.h"

namespace reprise::testing {
namespace {

struct Case {
  const char* checkpoint;
  const char* kind;  // "expected": released cache formats; "expected_plain": kv_cache_dtype model
};

EngineConfig config_for(const Case& c, Dtype dtype, ReplayMode replay) {
  EngineConfig config = tiny_config(c.checkpoint);
  config.dtype = dtype;
  config.replay = replay;
  config.kv_cache_dtype = std::string(c.kind) == "expected" ? CacheDtype::kAuto : CacheDtype::kModel;
  return config;
}

const char* golden_mode(ReplayMode replay) { return replay == ReplayMode::kBounded ? "bounded" : "full"; }

using Rows = std::vector<std::vector<float>>;

// How far a set of rows lies from the golden ones, over all of their values.
struct Distance {
  double largest = 0;   // |a - b|
  double absolute = 0;  // mean |a - b|
  double relative = 0;  // |a - b| / |b| as vectors
  double cosine = 1;    // between a and b as vectors
};

Distance distance(const Rows& got, const Rows& want) {
  Distance d;
  double sum = 0, count = 0, squares = 0, ab = 0, aa = 0, bb = 0;
  for (size_t r = 0; r < want.size(); ++r) {
    for (size_t i = 0; i < want[r].size(); ++i) {
      const double a = got.at(r).at(i);
      const double b = want[r][i];
      d.largest = std::isnan(a) ? INFINITY : std::max(d.largest, std::abs(a - b));
      sum += std::abs(a - b);
      squares += (a - b) * (a - b);
      ab += a * b;
      aa += a * a;
      bb += b * b;
      ++count;
    }
  }
  d.absolute = sum / count;
  d.relative = std::sqrt(squares / bb);
  d.cosine = ab / std::sqrt(aa * bb);
  return d;
}

class EngineGoldenTest : public ::testing::TestWithParam<Case> {};

TEST_P(EngineGoldenTest, TokensAndLogitsInFloat32) {
  const Case c = GetParam();
  const Golden golden(c.checkpoint, c.kind);
  for (const ReplayMode replay : {ReplayMode::kOff, ReplayMode::kBounded, ReplayMode::kExact}) {
    const auto engine = Engine::load(data_path(c.checkpoint), config_for(c, Dtype::kFloat32, replay));
    std::vector<Request> requests;
    for (size_t i = 0; golden.has(concat(i, ".prompt")); ++i)
      requests.push_back(greedy_request(golden.ids(concat(i, ".prompt")), 12));
    const auto results = run(*engine, requests);
    for (size_t i = 0; i < results.size(); ++i) {
      const std::string name = concat(i, ".", golden_mode(replay));
      EXPECT_EQ(results[i].tokens, golden.ids(name + ".tokens")) << c.checkpoint << " " << name;
      EXPECT_LE(distance(results[i].logprobs, golden.logprobs(name + ".logits")).largest, 2e-4)
          << c.checkpoint << " " << name;
    }
  }
}

TEST_P(EngineGoldenTest, PromptLogprobsInFloat32) {
  const Case c = GetParam();
  const Golden golden(c.checkpoint, c.kind);
  // Asked of an engine that trims: such a prompt must not be trimmed.
  const auto engine = Engine::load(data_path(c.checkpoint), config_for(c, Dtype::kFloat32, ReplayMode::kBounded));
  for (size_t i = 0; golden.has(concat(i, ".full.prompt_logits")); ++i) {
    Request request = greedy_request(golden.ids(concat(i, ".prompt")), 0);
    request.sampling.prompt_logprobs = -1;
    const auto result = run(*engine, {request}).front();
    auto want = golden.logprobs(concat(i, ".full.prompt_logits"));
    want.pop_back();  // the last row chooses the first generated token
    ASSERT_EQ(result.prompt_logprobs.size(), want.size());
    EXPECT_TRUE(result.tokens.empty());
    EXPECT_LE(distance(result.prompt_logprobs, want).largest, 2e-4) << c.checkpoint << " prompt " << i;
  }
}

// The one tolerance table. A near-tie of a selection that turns under bfloat16 moves its rows far, so the metrics are
// over all rows of a checkpoint.
struct Tolerance {
  double absolute, relative, cosine;
};
constexpr Tolerance kBFloat16{.absolute = 0.25, .relative = 0.05, .cosine = 0.9985};

class EngineBFloat16Test : public ::testing::TestWithParam<const char*> {};

TEST_P(EngineBFloat16Test, LogitsWithoutCacheRounding) {
  const Case c{GetParam(), "expected_plain"};
  const Golden golden(c.checkpoint, c.kind);
  Rows got, want;
  const auto add = [](Rows& rows, const Rows& more) { rows.insert(rows.end(), more.begin(), more.end()); };
  for (const ReplayMode replay : {ReplayMode::kOff, ReplayMode::kBounded}) {
    const auto engine = Engine::load(data_path(c.checkpoint), config_for(c, Dtype::kBFloat16, replay));
    for (size_t i = 0; golden.has(concat(i, ".prompt")); ++i) {
      // Prefill rows: a greedy continuation would leave the golden one at the first near-tie of the argmax.
      Request request = greedy_request(golden.ids(concat(i, ".prompt")), 1);
      add(got, run(*engine, {request}).front().logprobs);
      add(want, {golden.logprobs(concat(i, ".", golden_mode(replay), ".logits")).front()});
      if (replay != ReplayMode::kOff || !golden.has(concat(i, ".full.prompt_logits"))) continue;
      request.sampling.prompt_logprobs = -1;
      add(got, run(*engine, {request}).front().prompt_logprobs);
      auto rows = golden.logprobs(concat(i, ".full.prompt_logits"));
      rows.pop_back();
      add(want, rows);
    }
  }
  const Distance d = distance(got, want);
  SCOPED_TRACE(concat(c.checkpoint, ": absolute ", d.absolute, " relative ", d.relative, " cosine ", d.cosine, " over ",
                      want.size(), " rows"));
  EXPECT_LE(d.absolute, kBFloat16.absolute);
  EXPECT_LE(d.relative, kBFloat16.relative);
  EXPECT_GE(d.cosine, kBFloat16.cosine);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, EngineBFloat16Test,
                         ::testing::Values("v41-tiny", "v41-tiny-engram", "v41-tiny-quant"));

INSTANTIATE_TEST_SUITE_P(Fixtures, EngineGoldenTest,
                         ::testing::Values(Case{"v41-tiny", "expected"}, Case{"v41-tiny", "expected_plain"},
                                           Case{"v41-tiny-engram", "expected"},
                                           Case{"v41-tiny-engram", "expected_plain"},
                                           Case{"v41-tiny-quant", "expected"},
                                           Case{"v41-tiny-quant", "expected_plain"}));

}  // namespace
}  // namespace reprise::testing
