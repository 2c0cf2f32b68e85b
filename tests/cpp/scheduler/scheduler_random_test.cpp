#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

#include "../draw.h"
#include "scheduler_harness.h"

namespace reprise {
namespace {

using testing::Draw;
using testing::FakeModel;
using testing::Harness;

struct Coverage {
  int64_t preemptions = 0;
  int64_t cached_rows = 0;
  int64_t finished = 0;
  int64_t aborted = 0;
};

// Random models, budgets, page sizes, pools, arrivals, priorities, modes, aborts and shared prefixes. The harness
// compares every computed row with the request run alone and checks the books after every step; here the request is
// followed to its end.
void run_schedule(uint64_t seed, bool prefix_caching, Coverage& coverage) {
  Draw draw(seed);
  const int64_t window = draw.from(1, prefix_caching ? 5 : 9);
  const int64_t num_encoder = draw.from(1, 4);
  const FakeModel model = FakeModel::make(num_encoder + draw.from(0, 3), num_encoder, window);
  SchedulerConfig config;
  config.page_size = draw.one_of<int64_t>({2, 4, 6, 16});
  config.max_num_seqs = draw.from(1, 6);
  config.max_num_batched_tokens =
      draw.one_of<int64_t>({1, std::max<int64_t>(window - 1, 1), window, window + 1, 7, 13, 40});
  config.max_model_len = 90;
  config.enable_prefix_caching = prefix_caching;
  const ReplayMode usual_mode = draw.one_of({ReplayMode::kOff, ReplayMode::kBounded, ReplayMode::kExact});
  config.prefix_rebuild = draw.one_of({PrefixRebuild::kAuto, PrefixRebuild::kExact, PrefixRebuild::kBounded});
  const int64_t longest = draw.from(prefix_caching ? 25 : 4, 60);
  const int64_t longest_answer = draw.from(1, 30);
  const GroupPages window_group{config.page_size, 0, window};
  const GroupPages compressed_group{config.page_size, 0, 0};
  const int64_t rows = longest + longest_answer - 1;
  const int64_t slack = draw.one_of<int64_t>({0, 4, 8, 12, 100});
  config.num_pages = {1 + window_group.max_resident_pages(rows, 1) + draw.from(0, slack),
                      1 + compressed_group.max_resident_pages(rows, 1) + draw.from(0, slack)};
  Harness harness(model, config);

  std::vector<std::vector<int32_t>> families;  // prompts are prefixes of these with tails of their own
  for (int i = 0; i < 3; ++i)
    families.push_back(testing::make_prompt(longest, static_cast<int32_t>(draw.from(0, 1000))));
  const auto submit = [&](RequestId id) {
    SequenceRequest request;
    request.id = id;
    const auto length = draw.from(1, longest);
    request.prompt = families[static_cast<size_t>(draw.from(0, prefix_caching ? 1 : 2))];
    request.prompt.resize(static_cast<size_t>(length));
    for (int64_t p = draw.from(prefix_caching ? length / 2 : 0, length); p < length; ++p)
      request.prompt[static_cast<size_t>(p)] = static_cast<int32_t>(draw.from(0, 49));
    request.max_tokens = draw.from(0, longest_answer);
    request.priority = draw.from(0, 2);
    request.replay = draw.chance(0.5)
                         ? usual_mode
                         : draw.one_of({ReplayMode::kOff, ReplayMode::kBounded, ReplayMode::kExact, ReplayMode::kStep});
    request.reads_prompt_logits = draw.chance(0.1);
    request.needs_every_row = request.reads_prompt_logits || draw.chance(0.05);
    request.cache_salt = static_cast<uint64_t>(draw.from(0, 9) == 0);
    harness.submit(std::move(request));
  };

  const int64_t num_requests = draw.from(3, 16);
  RequestId next = 1;
  int64_t steps = 0;
  while (next <= num_requests || harness.scheduler.has_unfinished()) {
    while (next <= num_requests && draw.chance(0.4)) submit(next++);
    if (next > 1 && draw.chance(0.03)) harness.abort(draw.from(1, next - 1));
    if (draw.chance(0.02)) harness.scheduler.plan();  // a step that failed before it ran
    if (draw.chance(0.02)) {                          // and one that failed on its way
      harness.scheduler.plan();
      harness.scheduler.abandon();
    }
    harness.step();
    ASSERT_LT(++steps, 20000) << "requests starve";
    if (::testing::Test::HasFailure()) return;
  }
  harness.expect_all_free();
  for (auto& [id, entry] : harness.requests) {
    ASSERT_NE(entry.finished, entry.aborted) << "request " << id;
    coverage.finished += entry.finished;
    coverage.aborted += entry.aborted;
    EXPECT_LE(entry.facts.cached_rows, static_cast<int64_t>(entry.request.prompt.size()));
  }
  coverage.preemptions += harness.scheduler.totals().preemptions;
  coverage.cached_rows += harness.scheduler.totals().cached_rows;
}

uint64_t first_seed() {
  const char* given = std::getenv("REPRISE_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

int64_t num_schedules() {
  const char* given = std::getenv("REPRISE_TEST_SCHEDULES");
  return given != nullptr ? std::strtoll(given, nullptr, 10) : 300;
}

void run_schedules(bool prefix_caching) {
  const uint64_t seed = first_seed();
  std::cout << "REPRISE_TEST_SEED=" << seed << std::endl;
  Coverage coverage;
  for (int64_t i = 0; i < num_schedules(); ++i) {
    run_schedule(seed + static_cast<uint64_t>(i), prefix_caching, coverage);
    if (::testing::Test::HasFailure()) {
      FAIL() << "REPRISE_TEST_SEED=" << seed + static_cast<uint64_t>(i)
             << " REPRISE_TEST_SCHEDULES=1 repeats this schedule";
    }
  }
  std::cout << coverage.finished << " finished, " << coverage.aborted << " aborted, " << coverage.preemptions
            << " preemptions, " << coverage.cached_rows << " cached rows" << std::endl;
  if (num_schedules() >= 300) {
    EXPECT_GT(coverage.preemptions, 0);
    EXPECT_GT(coverage.aborted, 0);
    EXPECT_EQ(coverage.cached_rows > 0, prefix_caching);
  }
}

TEST(SchedulerRandom, EveryRequestGetsWhatItGetsAlone) { run_schedules(/*prefix_caching=*/false); }

TEST(SchedulerRandom, SharedPrefixesChangeNothing) { run_schedules(/*prefix_caching=*/true); }

}  // namespace
}  // namespace reprise
