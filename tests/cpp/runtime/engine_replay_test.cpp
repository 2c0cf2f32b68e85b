// What users see of the replay: who is trimmed, what is counted, what the caches hold.
#include <gtest/gtest.h>

#include <span>

#include "checkpoint/checkpoint.h"
#include "engine_cases.h"
#include "engine_harness.h"
#include "graphs/replay_dispatcher.h"
#include "layers/cache_layout.h"
#include "models/family.h"
#include "reprise/error.h"
#include "reprise/model_state.h"
#include "scheduler/scheduler.h"

namespace reprise::testing {
namespace {

constexpr int64_t kWindow = 8;
constexpr int64_t kEncoderLayers = 6;  // of 10
constexpr const char* kCheckpoint = "v41-tiny";

std::vector<int32_t> prompt_of(int64_t length) {
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < length; ++i) prompt.push_back(static_cast<int32_t>(3 + (i * 37 + length) % 280));
  return prompt;
}

std::unique_ptr<Engine> load(ReplayMode replay, int64_t budget = 2048) {
  EngineConfig config = tiny_config(kCheckpoint);
  config.replay = replay;
  config.max_num_batched_tokens = budget;
  config.max_num_seqs = std::min<int64_t>(8, budget);
  return Engine::load(data_path(kCheckpoint), config);
}

TEST(EngineReplayTest, PromptLogprobsAreNeverTrimmedBesideTrimmedRequests) {
  const auto engine = load(ReplayMode::kBounded, 13);
  Request wants_all = greedy_request(prompt_of(30), 3);
  wants_all.sampling.prompt_logprobs = -1;
  const auto results = run(*engine, {greedy_request(prompt_of(40), 3), wants_all, greedy_request(prompt_of(25), 3)});
  EXPECT_EQ(results[1].metrics.replay_mode, ReplayMode::kOff);
  EXPECT_EQ(results[1].metrics.replay_reason, "prompt logprobs read every row");
  EXPECT_EQ(results[1].metrics.replay_rows_by_layer, std::vector<int64_t>(4, 30));
  EXPECT_EQ(results[1].prompt_logprobs.size(), 29u);
  for (const size_t i : {0, 2}) {
    EXPECT_EQ(results[i].metrics.replay_mode, ReplayMode::kBounded);
    EXPECT_EQ(results[i].metrics.replay_rows_by_layer, (std::vector<int64_t>{8, 8, 8, 1}));
  }
  const auto off = load(ReplayMode::kOff);
  EXPECT_TRUE(results[1] == run(*off, {wants_all}).front());
}

// Head times hidden state is the logits: the row that the engine gives is the one its logits came from.
TEST(EngineReplayTest, HiddenStatesOfEveryRow) {
  const auto prompt = prompt_of(21);
  const auto engine = load(ReplayMode::kBounded, 8);
  Request request = greedy_request(prompt, 4);
  request.sampling.return_hidden_states = true;
  std::vector<float> hidden;
  Generated generated;
  engine->submit(request);
  while (engine->has_unfinished()) {
    for (const auto& output : checked_step(*engine)) {
      hidden.insert(hidden.end(), output.hidden_states.begin(), output.hidden_states.end());
      take(output, generated);
    }
  }
  EXPECT_EQ(generated.metrics.replay_reason, "hidden states read every row");
  const int64_t size = 64;
  const int64_t rows = 21 + 4 - 1;  // the last token is not run
  ASSERT_EQ(static_cast<int64_t>(hidden.size()), rows * size);

  const SafetensorsFile file(data_path(kCheckpoint) + "/model.safetensors");
  std::vector<float> head(288 * 64);
  file.tensors().at("head.weight").read(0, std::as_writable_bytes(std::span(head)));
  for (size_t i = 0; i < 4; ++i) {
    const float* row = hidden.data() + (20 + static_cast<int64_t>(i)) * size;
    double total = 0;
    std::vector<double> logits(288);
    for (size_t v = 0; v < logits.size(); ++v) {
      for (size_t h = 0; h < 64; ++h) logits[v] += static_cast<double>(head[v * 64 + h]) * row[h];
      total += std::exp(logits[v]);
    }
    for (size_t v = 0; v < logits.size(); ++v) EXPECT_NEAR(logits[v] - std::log(total), generated.logprobs[i][v], 1e-4);
  }
}

// A preempted request runs its rows again; each row's hidden state is given once all the same.
TEST(EngineReplayTest, HiddenStatesComeOncePerRowThroughPreemption) {
  EngineConfig config = tiny_config(kCheckpoint);
  config.max_num_seqs = 2;
  config.kv_cache_memory = memory_for(data_path(kCheckpoint), config, 52);
  const auto engine = Engine::load(data_path(kCheckpoint), config);
  Request low = greedy_request(prompt_of(90), 60);
  low.priority = 1;
  low.sampling.return_hidden_states = true;
  std::map<RequestId, std::vector<float>> hidden;
  std::map<RequestId, Generated> results;
  const auto step = [&] {
    for (const auto& output : checked_step(*engine)) {
      hidden[output.id].insert(hidden[output.id].end(), output.hidden_states.begin(), output.hidden_states.end());
      take(output, results[output.id]);
    }
  };
  const RequestId id = engine->submit(low);
  for (int i = 0; i < 3; ++i) step();
  engine->submit(greedy_request(prompt_of(80), 90));
  while (engine->has_unfinished()) step();
  ASSERT_GE(results[id].metrics.preemptions, 1);
  EXPECT_EQ(hidden[id].size(), static_cast<size_t>((90 + 60 - 1) * 64));

  const auto calm = load(ReplayMode::kOff);
  calm->submit(low);
  std::vector<float> want;
  while (calm->has_unfinished()) {
    for (const auto& output : calm->step()) {
      want.insert(want.end(), output.hidden_states.begin(), output.hidden_states.end());
    }
  }
  EXPECT_EQ(hidden[id], want);
}

TEST(EngineReplayTest, AskedPerRequest) {
  const auto engine = load(ReplayMode::kExact);
  Request off = greedy_request(prompt_of(40), 2);
  off.replay = ReplayMode::kOff;
  Request last_row = greedy_request(prompt_of(40), 2);
  last_row.replay = ReplayMode::kLastRow;
  const auto results = run(*engine, {greedy_request(prompt_of(40), 2), off, last_row});
  EXPECT_EQ(results[0].metrics.replay_rows_by_layer, (std::vector<int64_t>{22, 15, 8, 1}));
  EXPECT_EQ(results[1].metrics.replay_rows_by_layer, std::vector<int64_t>(4, 40));
  EXPECT_EQ(results[1].metrics.replay_reason, "");
  EXPECT_EQ(results[2].metrics.replay_mode, ReplayMode::kOff);
  EXPECT_NE(results[2].metrics.replay_reason.find("own window KV"), std::string::npos);
  EXPECT_TRUE(results[0] == results[1]) << "exact equals off";
}

TEST(EngineReplayTest, PolicyStepTrimsEachStep) {
  const auto whole = load(ReplayMode::kStep);
  const auto bounded = load(ReplayMode::kBounded);
  const auto request = greedy_request(prompt_of(40), 6);
  // In one step the prompt's last W rows are the step's.
  EXPECT_TRUE(run(*whole, {request}).front() == run(*bounded, {request}).front());
  const auto chunked = run(*load(ReplayMode::kStep, 15), {request}).front();
  // Chunks of 15, 15 and 10 rows keep 8 each; the last layer computes them all, since a later step may read none.
  EXPECT_GE(chunked.metrics.replay_rows_by_layer.front(), 3 * kWindow);
}

TEST(EngineReplayTest, StatsCountWhatRan) {
  const auto engine = load(ReplayMode::kBounded, 16);
  run(*engine, {greedy_request(prompt_of(40), 3), greedy_request(prompt_of(5), 3)});
  const auto stats = engine->stats();
  EXPECT_EQ(stats.prompt_rows, 45);
  EXPECT_EQ(stats.encoder_rows_run, 45);
  EXPECT_EQ(stats.replay_rows_by_layer, (std::vector<int64_t>{8 + 5, 8 + 5, 8 + 5, 1 + 1}));
  EXPECT_EQ(stats.generated_tokens, 6);
  EXPECT_EQ(stats.num_finished, 2);
  EXPECT_EQ(stats.replay_mode, ReplayMode::kBounded);
  EXPECT_EQ(stats.num_replay_layers, 4);
}

// A model and its caches, driven by a scheduler, open to inspection.
class OpenEngine {
 public:
  OpenEngine(ReplayMode replay, int64_t budget)
      : decoder_(read_decoder(data_path(kCheckpoint))),
        checkpoint_(data_path(kCheckpoint)),
        model_(decoder_->make({.dtype = at::kFloat, .cache_rounding = true, .max_rows = 2048}, checkpoint_)),
        cache_(model_->facts(),
               {.page_size = 4, .num_pages = {64, 64}, .max_num_seqs = 2, .dtype = at::kFloat, .poison = true}),
        state_(ModelStateBuilder(model_->facts()).max_num_seqs(2).max_model_len(200).page_size(4).build()),
        dispatcher_(*model_, nullptr, cache_),
        scheduler_({.model = model_->facts(),
                    .max_num_seqs = 2,
                    .max_num_batched_tokens = budget,
                    .max_model_len = 200,
                    .page_size = 4,
                    .num_pages = {64, 64}}),
        replay_(replay) {}

  // Runs the prompt's chunks and stops before a token is taken.
  void prefill(const std::vector<int32_t>& prompt) {
    scheduler_.add({.id = 1, .prompt = prompt, .max_tokens = 4, .replay = replay_});
    for (bool done = false; !done;) {
      const StepPlan& plan = scheduler_.plan();
      ASSERT_EQ(plan.sequences.size(), 1u);
      dispatcher_.forward(state_.prepare(plan));
      done = plan.sequences.front().samples;
      if (!done) scheduler_.commit({});
    }
  }

  KvCache& cache() { return cache_; }

 private:
  std::unique_ptr<Decoder> decoder_;
  Checkpoint checkpoint_;
  std::unique_ptr<Model> model_;
  KvCache cache_;
  ModelState state_;
  ReplayDispatcher dispatcher_;
  Scheduler scheduler_;
  ReplayMode replay_;
};

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

TEST(EngineReplayTest, EncoderCachesAndPublishedKvAreTheSameInEveryMode) {
  const auto prompt = prompt_of(61);
  for (const int64_t budget : {2048, 13}) {
    OpenEngine off(ReplayMode::kOff, budget);
    off.prefill(prompt);
    for (const ReplayMode replay : {ReplayMode::kBounded, ReplayMode::kExact}) {
      OpenEngine trimmed(replay, budget);
      trimmed.prefill(prompt);
      for (int64_t layer = 0; layer < kEncoderLayers; ++layer) {
        EXPECT_TRUE(same_bytes(off.cache().cells(kWindowKv, layer), trimmed.cache().cells(kWindowKv, layer)))
            << "window KV of layer " << layer;
      }
      for (const int64_t source : {2, 5}) {
        EXPECT_TRUE(same_bytes(off.cache().cells(kCompressedKv, source), trimmed.cache().cells(kCompressedKv, source)))
            << "source " << source;
        EXPECT_TRUE(same_bytes(off.cache().cells(kIndexKeys, source), trimmed.cache().cells(kIndexKeys, source)))
            << "source " << source;
      }
      EXPECT_FALSE(same_bytes(off.cache().cells(kWindowKv, 9), trimmed.cache().cells(kWindowKv, 9)))
          << "the last layer was trimmed";
    }
  }
}

}  // namespace
}  // namespace reprise::testing
