// Random arrivals, lengths, budgets, page and pool sizes, aborts, priorities and shared prefixes: whatever a request
// meets, it gets bit for bit what a cold engine gives it alone, and every page is free at the end.
#include <array>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <random>

#include "../draw.h"
#include "engine_cases.h"
#include "reprise/engine.h"
#include "reprise/error.h"

namespace reprise::testing {
namespace {

// 100 in all by default; REPRISE_SCHEDULES=2000 for a long sweep.
int64_t num_schedules(int64_t share) {
  const char* wanted = std::getenv("REPRISE_SCHEDULES");
  return std::max<int64_t>(1, (wanted != nullptr ? std::atoll(wanted) : 100) / share);
}

constexpr int64_t kMaxTokens = 40;
constexpr std::array<ReplayMode, 3> kModes = {ReplayMode::kOff, ReplayMode::kExact, ReplayMode::kBounded};

// The requests that schedules choose from, and what each gets alone: a few texts, and prompts that leave them at one
// place or another. Fewer tokens are a prefix of more, so that one run answers for every max_tokens.
class Requests {
 public:
  Requests(const std::string& checkpoint, Draw& draw) : checkpoint_(checkpoint) {
    const auto text = static_cast<unsigned>(draw.from(0, 1 << 20));
    for (const int64_t length : {1, 2, 8, 9, 17, 40, 41, 75, 76, 88, 97}) {
      for (const int64_t shared : {length, std::max<int64_t>(length - draw.from(1, 40), 0)}) {
        prompts_.push_back(make_prompt_sharing(shared, length, text + static_cast<unsigned>(length % 2),
                                               static_cast<int32_t>(draw.from(0, 200))));
      }
    }
    wanted_.resize(prompts_.size() * 2);
  }

  size_t size() const { return prompts_.size(); }

  Request make(size_t index, int64_t max_tokens) const { return make_request(prompts_[index], max_tokens, index); }

  const Generated& wanted(size_t index, ReplayMode mode) {
    auto& wanted = wanted_[2 * index + (mode == ReplayMode::kBounded)];
    if (!wanted) {
      EngineConfig config = tiny_config(checkpoint_);
      config.replay = mode;
      wanted = cold(data_path(checkpoint_), config, make(index, kMaxTokens));
    }
    return *wanted;
  }

 private:
  std::string checkpoint_;
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<std::optional<Generated>> wanted_;
};

struct Coverage {
  int64_t finished = 0;
  int64_t aborted = 0;
  int64_t preemptions = 0;
  int64_t preempted_hits = 0;  // requests that began with a hit and were preempted
  int64_t cached_rows = 0;
};

struct Submitted {
  size_t index = 0;
  Request request;
  ReplayMode mode{};
  Generated result;
  bool finished = false;
};

void run_schedule(const std::string& checkpoint, bool prefix_caching, Requests& requests, Draw& draw,
                  Coverage& coverage) {
  EngineConfig config = tiny_config(checkpoint);
  config.replay = draw.one_of({ReplayMode::kOff, ReplayMode::kBounded, ReplayMode::kExact});
  config.enable_prefix_caching = prefix_caching;
  // Many requests that grow far in few pages: a large budget leaves window pages for all, the compressed ones run out.
  const bool crowded = draw.chance(0.4);
  config.max_num_batched_tokens = crowded ? 200 : draw.one_of<int64_t>({1, 3, 7, 8, 9, 16, 31, 64, 200});
  config.max_num_seqs = std::min(crowded ? 6 : draw.from(1, 6), config.max_num_batched_tokens);
  config.page_size = draw.one_of<int64_t>({2, 4, 6, 8, crowded ? 8 : 16});
  config.max_model_len = 97 + kMaxTokens;
  if (draw.chance(0.3)) {
    for (const int64_t bucket : {1, 2, 4, 8, 24}) {
      if (bucket <= config.max_num_batched_tokens) config.graph_buckets.push_back(bucket);
    }
  }
  config.kv_cache_memory =
      memory_share(data_path(checkpoint), config, crowded ? 0.25 : draw.one_of({0.0, 0.3, 0.5, 1.0}));
  const auto engine = Engine::load(data_path(checkpoint), config);
  SCOPED_TRACE(concat("budget ", config.max_num_batched_tokens, ", seqs ", config.max_num_seqs, ", page ",
                      config.page_size, ", replay ", static_cast<int>(config.replay), ", memory ",
                      config.kv_cache_memory, ", graphs ", config.graph_buckets.size()));

  std::map<RequestId, Submitted> submitted;
  const int64_t count = crowded ? 8 : draw.from(1, 5);
  int64_t steps = 0;
  while (static_cast<int64_t>(submitted.size()) < count || engine->has_unfinished()) {
    while (static_cast<int64_t>(submitted.size()) < count &&
           (!engine->has_unfinished() || draw.chance(crowded ? 0.9 : 0.5))) {
      Submitted next{.index = static_cast<size_t>(draw.from(0, static_cast<int64_t>(requests.size()) - 1))};
      next.request =
          requests.make(next.index, draw.chance(0.1) ? 0 : draw.from(crowded ? kMaxTokens / 2 : 1, kMaxTokens));
      next.request.priority = draw.from(0, 2);
      if (draw.chance(0.3)) next.request.replay = kModes[static_cast<size_t>(draw.from(0, 2))];
      next.mode = next.request.replay.value_or(config.replay);
      const RequestId id = engine->submit(next.request);
      submitted.emplace(id, std::move(next));
    }
    if (draw.chance(0.01)) engine->abort(draw.from(0, static_cast<int64_t>(submitted.size()) - 1));
    for (const auto& output : checked_step(*engine)) {
      Submitted& entry = submitted.at(output.id);
      ASSERT_FALSE(entry.finished) << "an output after the last one";
      take(output, entry.result);
      entry.finished = output.finished;
    }
    ASSERT_LT(++steps, 5000) << "a request starves";
  }

  for (const auto& [id, entry] : submitted) {
    ASSERT_TRUE(entry.finished);
    const bool aborted = entry.result.finish_reason == FinishReason::kAbort;
    const auto& wanted = requests.wanted(entry.index, entry.mode);
    const size_t tokens = entry.result.tokens.size();
    if (!aborted) {
      ASSERT_EQ(entry.result.finish_reason, FinishReason::kLength);
      ASSERT_EQ(tokens, static_cast<size_t>(entry.request.sampling.max_tokens));
    }
    for (size_t i = 0; i < tokens; ++i) {
      ASSERT_TRUE(entry.result.tokens[i] == wanted.tokens[i] && entry.result.logprobs[i] == wanted.logprobs[i])
          << "request " << id << " of " << entry.request.prompt_token_ids.size() << " tokens, mode "
          << static_cast<int>(entry.mode) << ", token " << i << ", hit " << entry.result.metrics.cached_rows
          << ", preemptions " << entry.result.metrics.preemptions;
    }
    coverage.finished += !aborted;
    coverage.aborted += aborted;
    coverage.preempted_hits += entry.result.metrics.cached_rows > 0 && entry.result.metrics.preemptions > 0;
  }
  expect_all_pages_free(*engine);
  coverage.preemptions += engine->stats().preemptions;
  coverage.cached_rows += engine->stats().cached_rows;
}

struct Setting {
  const char* checkpoint;
  bool prefix_caching;
};

class EngineRandomTest : public ::testing::TestWithParam<Setting> {
 protected:
  // Over all settings: what must have happened for the schedules to mean anything.
  static void TearDownTestSuite() {
    std::cout << coverage.finished << " finished, " << coverage.aborted << " aborted, " << coverage.preemptions
              << " preemptions, " << coverage.cached_rows << " cached rows, " << coverage.preempted_hits
              << " preempted after a hit" << std::endl;
    if (coverage.finished < 300) return;  // a few schedules, or one setting
    EXPECT_GT(coverage.preemptions, 0);
    EXPECT_GT(coverage.aborted, 0);
    EXPECT_GT(coverage.cached_rows, 0);
  }
  static inline Coverage coverage;
};

TEST_P(EngineRandomTest, EveryRequestGetsWhatItGetsAlone) {
  const char* given = std::getenv("REPRISE_TEST_SEED");
  const unsigned seed =
      given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : std::random_device{}();
  std::cout << "REPRISE_TEST_SEED=" << seed << std::endl;
  const auto& [checkpoint, prefix_caching] = GetParam();
  Draw draw(seed);
  Requests requests(checkpoint, draw);
  const int64_t schedules = num_schedules(4);
  for (int64_t i = 0; i < schedules; ++i) {
    run_schedule(checkpoint, prefix_caching, requests, draw, coverage);
    if (HasFailure()) FAIL() << "schedule " << i << " of REPRISE_TEST_SEED=" << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, EngineRandomTest,
                         ::testing::Values(Setting{"v41-tiny", false}, Setting{"v41-tiny", true},
                                           Setting{"v41-tiny-engram", false}, Setting{"v41-tiny-engram", true}));

}  // namespace
}  // namespace reprise::testing
