// Ends before the end: aborts, deadlines, refusals and steps that fail.
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <chrono>
#include <new>
#include <thread>

#include "engine_cases.h"
#include "reprise/engine.h"
#include "reprise/error.h"

namespace reprise::testing {
namespace {

using namespace std::chrono_literals;

constexpr const char* kCheckpoint = "v41-tiny";

EngineConfig config_of(int64_t budget) {
  EngineConfig config = tiny_config(kCheckpoint);
  config.replay = ReplayMode::kExact;
  config.max_num_batched_tokens = budget;
  config.max_num_seqs = std::min<int64_t>(4, budget);
  config.max_model_len = 512;
  return config;
}

std::unique_ptr<Engine> load(const EngineConfig& config) { return Engine::load(data_path(kCheckpoint), config); }

Generated cold(const EngineConfig& config, const Request& request) {
  return testing::cold(data_path(kCheckpoint), config, request);
}

// The only output of a step that ended one request early.
void expect_ended(const std::vector<RequestOutput>& outputs, RequestId id, FinishReason reason) {
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_EQ(outputs[0].id, id);
  EXPECT_TRUE(outputs[0].finished);
  EXPECT_EQ(outputs[0].finish_reason, reason);
  EXPECT_TRUE(outputs[0].new_token_ids.empty());
  EXPECT_TRUE(outputs[0].error.empty());
}

// Waiting, between any two chunks, and between any two decodes; then the same prompt again equals a cold run.
TEST(EngineAbort, AtEveryStepThenTheSamePromptAgain) {
  const EngineConfig config = config_of(5);
  const Request request = make_request(make_prompt(27, 1), 4);
  const Generated want = cold(config, request);
  const auto engine = load(config);
  for (int abort_at = 0; abort_at < 9; ++abort_at) {  // six chunks, the last with the first token, and three decodes
    const RequestId id = engine->submit(request);
    for (int i = 0; i < abort_at; ++i) {
      for (const auto& output : checked_step(*engine)) EXPECT_FALSE(output.finished);
    }
    EXPECT_TRUE(engine->abort(id));
    EXPECT_FALSE(engine->abort(id)) << "it has ended";
    expect_all_pages_free(*engine);
    EXPECT_TRUE(engine->has_unfinished()) << "its last output is still to come";
    expect_ended(checked_step(*engine), id, FinishReason::kAbort);
    EXPECT_FALSE(engine->has_unfinished());
    EXPECT_TRUE(run(*engine, {request}).front() == want) << "after an abort at step " << abort_at;
    expect_all_pages_free(*engine);
  }
}

TEST(EngineAbort, WhileOthersRun) {
  const EngineConfig config = config_of(8);
  std::vector<Request> requests;
  std::vector<Generated> want;
  for (size_t i = 0; i < 3; ++i) {
    requests.push_back(make_request(make_prompt(14, static_cast<unsigned>(i)), 8, i));
    want.push_back(cold(config, requests.back()));
  }
  for (int abort_at = 0; abort_at < 12; ++abort_at) {
    const auto engine = load(config);
    std::map<RequestId, Generated> results;
    std::vector<RequestId> ids;
    for (const auto& request : requests) ids.push_back(engine->submit(request));
    for (int step = 0; engine->has_unfinished(); ++step) {
      if (step == abort_at) engine->abort(ids[1]);
      for (const auto& output : checked_step(*engine)) take(output, results[output.id]);
    }
    EXPECT_TRUE(results[ids[0]] == want[0] && results[ids[2]] == want[2]) << abort_at;
    expect_all_pages_free(*engine);
  }
}

TEST(EngineAbort, APreemptedRequest) {
  EngineConfig config = config_of(64);
  config.kv_cache_memory = memory_for(data_path(kCheckpoint), config, 25);
  const auto engine = load(config);
  Request low = make_request(make_prompt(40, 2), 50);
  low.priority = 1;
  const Request high = make_request(make_prompt(40, 3), 50);
  const RequestId low_id = engine->submit(low);
  checked_step(*engine);
  const RequestId high_id = engine->submit(high);
  Generated result;
  while (engine->stats().preemptions == 0) {
    ASSERT_TRUE(engine->has_unfinished());
    for (const auto& output : checked_step(*engine)) {
      if (output.id == high_id) take(output, result);
    }
  }
  EXPECT_EQ(engine->stats().num_waiting, 1);
  EXPECT_TRUE(engine->abort(low_id));
  EXPECT_EQ(engine->stats().num_waiting, 0);
  while (engine->has_unfinished()) {
    for (const auto& output : checked_step(*engine)) {
      if (output.id == high_id) take(output, result);
      if (output.id == low_id) {
        EXPECT_EQ(output.finish_reason, FinishReason::kAbort);
        EXPECT_EQ(output.metrics.preemptions, 1);
      }
    }
  }
  EXPECT_TRUE(result == cold(config, high));
  expect_all_pages_free(*engine);
}

TEST(EngineAbort, AllWithMoreQueuedThanRunning) {
  const EngineConfig config = config_of(8);
  const auto engine = load(config);
  std::vector<RequestId> ids;
  for (unsigned i = 0; i < 20; ++i) ids.push_back(engine->submit(make_request(make_prompt(11, i), 30)));
  for (int i = 0; i < 5; ++i) checked_step(*engine);
  EXPECT_GT(engine->stats().num_waiting, engine->stats().num_running);
  EXPECT_GT(engine->stats().num_running, 0);
  EXPECT_EQ(engine->abort_all(), 20);
  EXPECT_EQ(engine->abort_all(), 0);
  EXPECT_EQ(engine->stats().num_waiting + engine->stats().num_running, 0);
  expect_all_pages_free(*engine);
  const auto outputs = checked_step(*engine);
  ASSERT_EQ(outputs.size(), 20u);
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(outputs[i].id, ids[i]) << "in the order of submission";
    EXPECT_EQ(outputs[i].finish_reason, FinishReason::kAbort);
  }
  EXPECT_FALSE(engine->has_unfinished());
  const Request request = make_request(make_prompt(11, 1), 5);
  EXPECT_TRUE(run(*engine, {request}).front() == cold(config, request));
}

TEST(EngineAbort, UnknownRequests) {
  const auto engine = load(config_of(8));
  EXPECT_FALSE(engine->abort(0));
  EXPECT_FALSE(engine->abort(-1));
  EXPECT_EQ(engine->abort_all(), 0);
}

// A deadline ends a waiting request and a running one, with what it has so far.
TEST(EngineAbort, Deadlines) {
  EngineConfig config = config_of(8);
  config.max_num_seqs = 1;
  const auto engine = load(config);
  Request running = make_request(make_prompt(5, 1), 400);
  running.timeout_s = 0.2;
  Request waiting = make_request(make_prompt(5, 2), 4);
  waiting.timeout_s = 0.2;
  Request patient = make_request(make_prompt(5, 3), 4);
  patient.timeout_s = 1e300;
  const RequestId running_id = engine->submit(running);
  const RequestId waiting_id = engine->submit(waiting);
  const RequestId patient_id = engine->submit(patient);
  EXPECT_EQ(checked_step(*engine).front().id, running_id);
  EXPECT_EQ(engine->stats().num_waiting, 2);
  std::this_thread::sleep_for(250ms);
  std::map<RequestId, Generated> results;
  while (engine->has_unfinished()) {
    for (const auto& output : checked_step(*engine)) take(output, results[output.id]);
  }
  EXPECT_EQ(results[running_id].finish_reason, FinishReason::kTimeout);
  EXPECT_TRUE(results[running_id].tokens.empty()) << "no step ran after the deadline";
  EXPECT_EQ(results[waiting_id].finish_reason, FinishReason::kTimeout);
  EXPECT_EQ(results[patient_id].finish_reason, FinishReason::kLength);
  EXPECT_TRUE(results[patient_id] == cold(config, patient));
  expect_all_pages_free(*engine);
}

TEST(EngineRefusals, AFullQueue) {
  EngineConfig config = config_of(8);
  config.max_num_seqs = 1;
  config.max_waiting = 2;
  const auto engine = load(config);
  std::vector<Request> requests;
  for (unsigned i = 0; i < 4; ++i) requests.push_back(make_request(make_prompt(5, i), 3));
  std::map<RequestId, Generated> results;
  engine->submit(requests[0]);
  checked_step(*engine);
  const RequestId second = engine->submit(requests[1]);
  engine->submit(requests[2]);
  EXPECT_EQ(
      complaint([&] { engine->submit(requests[3]); }),
      "[submit] wanted fewer than 2 waiting requests (max_waiting) but got 2; submit again when some have finished");
  while (engine->has_unfinished()) {
    for (const auto& output : checked_step(*engine)) take(output, results[output.id]);
  }
  EXPECT_TRUE(results[second] == cold(config, requests[1])) << "the refusal changed nothing";
  EXPECT_EQ(engine->stats().num_finished, 3);
  engine->submit(requests[3]);
  EXPECT_EQ(engine->stats().num_waiting, 1) << "there is room again";
}

TEST(EngineRefusals, RequestsThatNeverFit) {
  EngineConfig config = config_of(16);
  config.max_model_len = 0;
  config.kv_cache_memory = memory_for(data_path(kCheckpoint), config, 11);  // ten pages of four tokens
  const auto engine = load(config);
  EXPECT_EQ(engine->stats().max_model_len, 40);
  EXPECT_EQ(complaint([&] { engine->submit(make_request(make_prompt(35, 1), 6)); }),
            "[submit] wanted prompt + max_tokens of at most 40 tokens (max_model_len) but got 35 + 6");
  EXPECT_TRUE(says(complaint([&] { engine->submit(make_request(make_prompt(41, 1), 0)); }), "but got 41 + 0"));
  EXPECT_FALSE(engine->has_unfinished());
  const Request longest = make_request(make_prompt(35, 1), 5);
  EXPECT_TRUE(run(*engine, {longest}).front() == cold(config, longest));

  config.kv_cache_memory = memory_for(data_path(kCheckpoint), config, 2) - 1;
  EXPECT_TRUE(says(complaint([&] { load(config); }),
                   concat("[kv_cache_memory] wanted at least ", config.kv_cache_memory + 1, " bytes")));
}

// Memory that runs out at one allocation of this thread.
class FailingAllocator : public c10::Allocator {
 public:
  explicit FailingAllocator(c10::Allocator* next) : next_(next) {}
  c10::DataPtr allocate(size_t bytes) override {
    if (countdown > 0 && --countdown == 0) throw std::bad_alloc();
    return next_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return next_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { next_->copy_data(to, from, bytes); }
  int countdown = 0;

 private:
  c10::Allocator* next_;
};

// A step that failed half way left rows in the caches; stepping on gives every request what it gets alone all the same.
TEST(EngineFailures, AStepThatFailsAnywhereChangesNothing) {
  static FailingAllocator allocator(c10::GetCPUAllocator());
  c10::SetCPUAllocator(&allocator, 1);
  for (const bool prefix_caching : {false, true}) {
    EngineConfig config = config_of(7);
    config.enable_prefix_caching = prefix_caching;
    config.prefix_rebuild = PrefixRebuild::kExact;
    std::vector<Request> requests;
    std::vector<Generated> want;
    for (size_t i = 0; i < 3; ++i) {
      requests.push_back(make_request(make_prompt(9 + 4 * static_cast<int64_t>(i), static_cast<unsigned>(i)), 5, i));
      want.push_back(cold(config, requests.back()));
    }
    std::mt19937 random(17);
    const auto engine = load(config);
    int failures = 0;
    for (int round = 0; round < 10; ++round) {
      std::map<RequestId, size_t> places;
      std::vector<Generated> results(requests.size());
      for (const auto& request : requests) places.emplace(engine->submit(request), places.size());
      while (engine->has_unfinished()) {
        allocator.countdown = 1 + static_cast<int>(random() % 400);
        try {
          for (const auto& output : checked_step(*engine)) take(output, results[places.at(output.id)]);
        } catch (const std::bad_alloc&) {
          ++failures;
        }
        allocator.countdown = 0;
      }
      for (size_t i = 0; i < requests.size(); ++i)
        ASSERT_TRUE(results[i] == want[i]) << "round " << round << " request " << i;
      expect_all_pages_free(*engine);
    }
    EXPECT_GT(failures, 10);
  }
}

}  // namespace
}  // namespace reprise::testing
