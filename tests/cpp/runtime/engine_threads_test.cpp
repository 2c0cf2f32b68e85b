// Submit, abort and stats from many threads while one steps.
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "engine_cases.h"
#include "reprise/engine.h"
#include "reprise/engine_loop.h"

namespace reprise::testing {
namespace {

constexpr const char* kCheckpoint = "v41-tiny";
constexpr int kNumThreads = 4;
constexpr int kRequestsPerThread = 20;

EngineConfig config_of() {
  EngineConfig config = tiny_config(kCheckpoint);
  config.replay = ReplayMode::kExact;
  config.enable_prefix_caching = true;
  config.prefix_rebuild = PrefixRebuild::kExact;
  config.max_num_batched_tokens = 200;
  config.max_num_seqs = 6;
  config.max_model_len = 100;
  config.kv_cache_memory = memory_share(data_path(kCheckpoint), config, 0.3);
  return config;
}

// The requests that the threads choose from, and what each gets alone.
struct Choices {
  Choices() {
    for (const int64_t length : {1, 9, 30, 50, 75}) {
      requests.push_back(make_request(make_prompt(length, 1), 12, requests.size()));
      wanted.push_back(cold(data_path(kCheckpoint), config_of(), requests.back()));
    }
  }
  std::vector<Request> requests;
  std::vector<Generated> wanted;
};

struct Submitted {
  size_t choice = 0;
  Generated result;
  int num_finished = 0;
};

// One map for all threads; an output may come before its request is entered, so entries are made by either side.
class Results {
 public:
  void enter(RequestId id, size_t choice) {
    const std::lock_guard lock(mutex_);
    results_[id].choice = choice;
  }
  void take(const RequestOutput& output) {
    const std::lock_guard lock(mutex_);
    testing::take(output, results_[output.id].result);
    results_[output.id].num_finished += output.finished;
  }
  void check(const Choices& choices) const {
    EXPECT_EQ(results_.size(), static_cast<size_t>(kNumThreads * kRequestsPerThread));
    int64_t whole = 0;
    for (const auto& [id, entry] : results_) {
      EXPECT_EQ(entry.num_finished, 1) << "request " << id;
      const Generated& want = choices.wanted[entry.choice];
      if (entry.result.finish_reason == FinishReason::kLength) {
        EXPECT_TRUE(entry.result == want) << "request " << id;
        ++whole;
        continue;
      }
      EXPECT_EQ(entry.result.finish_reason, FinishReason::kAbort);
      for (size_t i = 0; i < entry.result.tokens.size(); ++i) EXPECT_EQ(entry.result.logprobs[i], want.logprobs[i]);
    }
    EXPECT_GT(whole, 0);
  }

 private:
  std::mutex mutex_;
  std::map<RequestId, Submitted> results_;
};

// Runs `submit` and random aborts from several threads.
template <typename Submit>
std::vector<std::thread> start_clients(Engine& engine, const Choices& choices, std::atomic<int>& running,
                                       Submit submit) {
  std::vector<std::thread> clients;
  for (unsigned client = 0; client < kNumThreads; ++client) {
    clients.emplace_back([&, client, submit] {
      std::mt19937 random(client);
      std::vector<RequestId> ids;
      for (int i = 0; i < kRequestsPerThread; ++i) {
        ids.push_back(submit(random() % choices.requests.size()));
        if (random() % 4 == 0) engine.abort(ids[random() % ids.size()]);
        const EngineStats stats = engine.stats();
        EXPECT_LE(stats.num_running, 6);
        if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(random() % 4));
      }
      --running;
    });
  }
  return clients;
}

TEST(EngineThreads, SubmitAndAbortWhileOneThreadSteps) {
  const Choices choices;
  const auto engine = Engine::load(data_path(kCheckpoint), config_of());
  Results results;
  std::atomic<int> running = kNumThreads;
  auto clients = start_clients(*engine, choices, running, [&](size_t choice) {
    const RequestId id = engine->submit(choices.requests[choice]);
    results.enter(id, choice);
    return id;
  });
  while (running > 0 || engine->has_unfinished()) {
    for (const auto& output : engine->step()) results.take(output);
  }
  for (auto& client : clients) client.join();
  results.check(choices);
  expect_all_pages_free(*engine);
}

TEST(EngineThreads, SubmitAndAbortWhileALoopRuns) {
  const Choices choices;
  const auto engine = Engine::load(data_path(kCheckpoint), config_of());
  EngineLoop loop(*engine);
  loop.start();
  Results results;
  std::atomic<int> running = kNumThreads;
  auto clients = start_clients(*engine, choices, running, [&](size_t choice) {
    const RequestId id =
        loop.submit(choices.requests[choice], [&results](const RequestOutput& output) { results.take(output); });
    results.enter(id, choice);
    return id;
  });
  for (int i = 0; i < 5; ++i) {  // requests stay where they are meanwhile
    loop.stop();
    loop.start();
  }
  for (auto& client : clients) client.join();
  EXPECT_TRUE(loop.drain());
  results.check(choices);
  expect_all_pages_free(*engine);
}

// Several threads may step, one at a time: no output is lost or given twice.
TEST(EngineThreads, StepsFromSeveralThreadsTakeTurns) {
  const Choices choices;
  const auto engine = Engine::load(data_path(kCheckpoint), config_of());
  std::vector<std::pair<RequestId, size_t>> ids;
  for (size_t i = 0; i < 12; ++i) {
    ids.emplace_back(engine->submit(choices.requests[i % choices.requests.size()]), i % choices.requests.size());
  }
  std::mutex mutex;
  std::map<RequestId, std::map<int32_t, int>> tokens;  // per request, how often it got each token
  std::vector<std::thread> steppers;
  for (int i = 0; i < 3; ++i) {
    steppers.emplace_back([&] {
      while (engine->has_unfinished()) {
        const auto outputs = engine->step();
        const std::lock_guard lock(mutex);
        for (const auto& output : outputs) {
          for (const int32_t token : output.new_token_ids) ++tokens[output.id][token];
        }
      }
    });
  }
  for (auto& stepper : steppers) stepper.join();
  for (const auto& [id, choice] : ids) {
    std::map<int32_t, int> want;
    for (const int32_t token : choices.wanted[choice].tokens) ++want[token];
    EXPECT_EQ(tokens[id], want);
  }
  expect_all_pages_free(*engine);
}

}  // namespace
}  // namespace reprise::testing
