// The engine loop: callbacks, ends and failures.
#include "reprise/engine_loop.h"

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <future>
#include <new>
#include <stdexcept>

#include "engine_cases.h"

namespace reprise::testing {
namespace {

using namespace std::chrono_literals;

std::unique_ptr<Engine> load(EngineConfig config = tiny_config("v41-tiny")) {
  return Engine::load(data_path("v41-tiny"), std::move(config));
}

Generated alone(const Request& request) { return run(*load(), {request}).front(); }

// Waits for a condition that the loop's thread brings about.
template <typename Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 5000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

TEST(EngineLoop, CallbacksGetWhatStepsByHandGive) {
  const auto engine = load();
  EngineLoop loop(*engine);
  std::vector<Generated> results(6);
  std::vector<int> finished(6);
  std::vector<Request> requests;
  for (unsigned i = 0; i < 6; ++i) requests.push_back(greedy_request(make_prompt(5 + 9 * i, i), 1 + 2 * i));
  std::atomic<int> on_other_thread = 0;
  const auto submit = [&](size_t i) {
    return loop.submit(requests[i], [&, i, caller = std::this_thread::get_id()](const RequestOutput& output) {
      EXPECT_EQ(finished[i], 0) << "an output after the last one";
      finished[i] += output.finished;
      on_other_thread += std::this_thread::get_id() != caller;
      take(output, results[i]);
    });
  };
  for (size_t i = 0; i < 3; ++i) submit(i);
  EXPECT_FALSE(loop.is_running());
  EXPECT_EQ(engine->stats().steps, 0) << "nothing runs before start()";
  loop.start();
  EXPECT_TRUE(loop.is_running());
  for (size_t i = 3; i < 6; ++i) submit(i);
  EXPECT_TRUE(loop.drain());
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(finished[i], 1);
    EXPECT_TRUE(results[i] == alone(requests[i])) << i;
  }
  EXPECT_GE(on_other_thread, 6);
  EXPECT_TRUE(loop.drain()) << "nothing to wait for";
  expect_all_pages_free(*engine);
}

TEST(EngineLoop, OutputsComeInTheOrderOfSubmission) {
  const auto engine = load();
  EngineLoop loop(*engine);
  std::vector<RequestId> ids, order;
  for (unsigned i = 0; i < 4; ++i) {
    ids.push_back(
        loop.submit(greedy_request(make_prompt(6, i), 3), [&](const RequestOutput& o) { order.push_back(o.id); }));
  }
  loop.start();
  loop.drain();
  std::vector<RequestId> want;
  for (int token = 0; token < 3; ++token) want.insert(want.end(), ids.begin(), ids.end());
  EXPECT_EQ(order, want) << "three steps, each in the order of submission";
}

TEST(EngineLoop, SleepsWhileThereIsNothingToRun) {
  const auto engine = load();
  EngineLoop loop(*engine);
  loop.start();
  loop.submit(greedy_request(make_prompt(4, 1), 3), [](const RequestOutput&) {});
  loop.drain();
  const int64_t steps = engine->stats().steps;
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(200ms);
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.1) << "processor time of the whole process";
  EXPECT_EQ(engine->stats().steps, steps);
  EXPECT_EQ(steps, 3);
}

TEST(EngineLoop, StopLeavesRequestsAsTheyAreForTheNextStart) {
  const auto engine = load();
  EngineLoop loop(*engine);
  const Request request = greedy_request(make_prompt(20, 3), 12);
  Generated result;
  std::promise<void> third_token;
  loop.submit(request, [&](const RequestOutput& output) {
    take(output, result);
    if (result.tokens.size() == 3) {
      loop.stop();  // from the callback: no further step begins
      third_token.set_value();
    }
  });
  loop.start();
  third_token.get_future().wait();
  loop.stop();
  EXPECT_FALSE(loop.is_running());
  EXPECT_EQ(result.tokens.size(), 3u);
  EXPECT_TRUE(engine->has_unfinished());
  EXPECT_EQ(complaint([&] { loop.drain(); }),
            "[drain] wanted a running loop but 1 requests wait and it is stopped; call start() first");
  loop.start();
  EXPECT_TRUE(loop.drain());
  EXPECT_TRUE(result == alone(request));
}

TEST(EngineLoop, StopEndsADrainThatWaits) {
  const auto engine = load();
  EngineLoop loop(*engine);
  std::atomic<int> tokens = 0;
  loop.submit(greedy_request(make_prompt(4, 1), 4000), [&](const RequestOutput&) { ++tokens; });
  loop.start();
  auto drained = std::async(std::launch::async, [&] { return loop.drain(); });
  EXPECT_TRUE(eventually([&] { return tokens > 2; }));
  loop.stop();
  EXPECT_FALSE(drained.get());
}

TEST(EngineLoop, TheDestructorStops) {
  const auto engine = load();
  {
    EngineLoop loop(*engine);
    loop.submit(greedy_request(make_prompt(4, 1), 4000), [](const RequestOutput&) {});
    loop.start();
  }
  EXPECT_TRUE(engine->has_unfinished());
  EXPECT_EQ(engine->abort_all(), 1);
  EXPECT_EQ(engine->step().size(), 1u) << "steps by hand are allowed again";
  expect_all_pages_free(*engine);
}

TEST(EngineLoop, RefusesStepsByHandAndASecondLoop) {
  const auto engine = load();
  EngineLoop loop(*engine);
  loop.start();
  EXPECT_EQ(complaint([&] { engine->step(); }),
            "[step] wanted an engine that is stepped by hand but a loop runs it; stop() the loop first");
  EXPECT_EQ(complaint([&] { engine->submit(greedy_request({5}, 1)); }),
            "[submit] wanted a call of EngineLoop::submit, with a callback, while a loop runs this engine");
  EXPECT_EQ(complaint([&] { loop.start(); }),
            "[start] wanted a loop that is not running but it runs already; call stop() first");
  EngineLoop other(*engine);
  EXPECT_EQ(complaint([&] { other.start(); }),
            "[start] wanted an engine that no loop runs but another EngineLoop runs it");
  EXPECT_EQ(complaint([&] { loop.submit(greedy_request({5}, 1), nullptr); }),
            "[submit] wanted a callback for the outputs but got none");
  EXPECT_NE(complaint([&] { loop.submit(greedy_request({}, 1), [](const RequestOutput&) {}); }), "");
  EXPECT_TRUE(loop.drain()) << "a refused request leaves nothing behind";
  loop.stop();
  other.start();
  EXPECT_TRUE(other.is_running());
}

TEST(EngineLoop, ACallbackThatThrowsEndsItsRequestOnly) {
  const auto engine = load();
  EngineLoop loop(*engine);
  int calls = 0;
  Generated beside;
  const Request request = greedy_request(make_prompt(12, 2), 9);
  loop.submit(greedy_request(make_prompt(12, 1), 9), [&](const RequestOutput&) {
    if (++calls == 2) throw std::runtime_error("no");
  });
  loop.submit(request, [&](const RequestOutput& output) { take(output, beside); });
  loop.submit(greedy_request(make_prompt(3, 1), 1), [&](const RequestOutput&) { throw 7; });  // with its last output
  loop.start();
  EXPECT_TRUE(loop.drain());
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(beside == alone(request));
  EXPECT_TRUE(loop.is_running());
  expect_all_pages_free(*engine);
}

TEST(EngineLoop, CallbacksMaySubmitAndAbort) {
  const auto engine = load();
  EngineLoop loop(*engine);
  const Request second = greedy_request(make_prompt(9, 2), 4);
  Generated result;
  std::atomic<int> done = 0;
  FinishReason first_reason = FinishReason::kNone;
  loop.start();
  loop.submit(greedy_request(make_prompt(9, 1), 4000), [&](const RequestOutput& output) {
    if (output.finished) {
      first_reason = output.finish_reason;
      ++done;
      return;
    }
    if (engine->abort(output.id)) {
      loop.submit(second, [&](const RequestOutput& o) {
        take(o, result);
        done += o.finished;
      });
    }
  });
  EXPECT_TRUE(eventually([&] { return done == 2; }));
  EXPECT_EQ(first_reason, FinishReason::kAbort);
  EXPECT_TRUE(result == alone(second));
}

TEST(EngineLoop, AbortReachesTheCallbackWhileTheLoopRuns) {
  const auto engine = load();
  EngineLoop loop(*engine);
  loop.start();
  std::atomic<int> tokens = 0;
  std::atomic<bool> aborted = false;
  const RequestId id = loop.submit(greedy_request(make_prompt(9, 1), 4000), [&](const RequestOutput& output) {
    ++tokens;
    aborted = output.finish_reason == FinishReason::kAbort;
  });
  EXPECT_TRUE(eventually([&] { return tokens > 0; }));
  EXPECT_TRUE(engine->abort(id));
  EXPECT_TRUE(loop.drain());
  EXPECT_TRUE(aborted);
  expect_all_pages_free(*engine);
}

// Memory that runs out while armed.
class FailingAllocator : public c10::Allocator {
 public:
  explicit FailingAllocator(c10::Allocator* next) : next_(next) {}
  c10::DataPtr allocate(size_t bytes) override {
    if (armed) throw std::bad_alloc();
    return next_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return next_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { next_->copy_data(to, from, bytes); }
  std::atomic<bool> armed = false;

 private:
  c10::Allocator* next_;
};

TEST(EngineLoop, AStepThatFailsIsReportedAndEndsTheLoop) {
  static FailingAllocator allocator(c10::GetCPUAllocator());
  c10::SetCPUAllocator(&allocator, 1);
  const auto engine = load();
  EngineLoop loop(*engine);
  std::vector<RequestOutput> last(2);
  const auto submit = [&](size_t i) {
    loop.submit(greedy_request(make_prompt(9, 1), 4000), [&, i](const RequestOutput& output) {
      allocator.armed = true;
      last[i] = output;
    });
  };
  submit(0);
  submit(1);
  loop.start();
  EXPECT_THROW(loop.drain(), std::bad_alloc);
  EXPECT_FALSE(loop.is_running());
  allocator.armed = false;
  for (const auto& output : last) {
    EXPECT_TRUE(output.finished) << "nobody waits for ever";
    EXPECT_EQ(output.finish_reason, FinishReason::kAbort);
    EXPECT_EQ(output.error, std::bad_alloc().what());
  }
  expect_all_pages_free(*engine);
  EXPECT_NE(complaint([&] { submit(0); }), "") << "a loop that failed takes nothing more";

  const Request request = greedy_request(make_prompt(20, 4), 5);
  loop.start();
  Generated result;
  loop.submit(request, [&](const RequestOutput& output) { take(output, result); });
  EXPECT_TRUE(loop.drain());
  EXPECT_TRUE(result == alone(request)) << "the next start begins afresh";
}

}  // namespace
}  // namespace reprise::testing
