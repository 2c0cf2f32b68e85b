// Steps in graphs: the same results bit for bit, padding that reaches nothing, and which steps run from which graph.
#include "graphs/graph_runner.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "../temporary_folder.h"
#include "engine_harness.h"
#include "graphs/graphed_walk.h"
#include "graphs/replay_dispatcher.h"
#include "reprise/error.h"
#include "reprise/model_state.h"

namespace reprise::testing {
namespace {

const std::vector<int64_t> kBuckets{1, 2, 4, 8, 24};
constexpr int64_t kWindow = 8;  // of the tiny checkpoints

EngineConfig graph_config(const std::string& checkpoint, ReplayMode replay, const std::vector<int64_t>& buckets) {
  EngineConfig config = tiny_config(checkpoint);
  config.replay = replay;
  config.graph_buckets = buckets;
  return config;
}

std::vector<int32_t> random_prompt(std::mt19937& random, int64_t length) {
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  for (auto& id : prompt) id = std::uniform_int_distribution<int32_t>(3, 287)(random);
  return prompt;
}

TEST(GraphRunner, RunsTheWorkOnWhatTheBuffersHoldAndKeepsTheOutputsInPlace) {
  const at::Tensor input = at::zeros({3});
  const auto runner = make_graph_runner(at::kCPU, [&] { return GraphRunner::Outputs{input.add(1), input}; });
  const void* place = nullptr;
  for (const float value : {2.0f, 5.0f}) {
    input.fill_(value);
    const auto& outputs = runner->run();
    EXPECT_TRUE(outputs[0].equal(at::full({3}, value + 1)));
    EXPECT_TRUE(outputs[1].is_same(input)) << "work in place returns its own buffer";
    EXPECT_TRUE(place == nullptr || place == outputs[0].const_data_ptr());
    place = outputs[0].const_data_ptr();
  }
}

TEST(GraphRunner, RefusesOtherDevices) {
  EXPECT_THROW(make_graph_runner(at::Device(at::kMeta), [] { return GraphRunner::Outputs(); }), std::invalid_argument);
}

TEST(GraphBuckets, AreChecked) {
  for (const auto& wrong : {std::vector<int64_t>{0}, {4, 2}, {2, 2}, {-1}, {4096}}) {
    EXPECT_THROW(Engine::load(data_path("v41-tiny"), graph_config("v41-tiny", ReplayMode::kOff, wrong)),
                 std::invalid_argument);
  }
}

struct Setting {
  const char* checkpoint;
  Dtype dtype;
};

class GraphEngineTest : public ::testing::TestWithParam<Setting> {};

TEST_P(GraphEngineTest, GoldenTokens) {
  const Golden golden(GetParam().checkpoint, "expected");
  for (const ReplayMode replay : {ReplayMode::kOff, ReplayMode::kBounded, ReplayMode::kExact}) {
    EngineConfig config = graph_config(GetParam().checkpoint, replay, kBuckets);
    config.dtype = Dtype::kFloat32;  // the golden continuations'
    const auto engine = Engine::load(data_path(GetParam().checkpoint), config);
    std::vector<Request> requests;
    for (size_t i = 0; golden.has(concat(i, ".prompt")); ++i)
      requests.push_back(greedy_request(golden.ids(concat(i, ".prompt")), 12));
    const auto results = run(*engine, requests);
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].tokens,
                golden.ids(concat(i, ".", replay == ReplayMode::kBounded ? "bounded" : "full", ".tokens")));
    }
  }
}

// Prefill and decode rows of several modes share steps, of every size around the buckets; what each request gets is
// what it gets alone without graphs.
TEST_P(GraphEngineTest, EqualsEagerBitForBit) {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  SCOPED_TRACE(concat("seed ", seed));
  std::vector<Request> requests;
  for (const int64_t length : {1, 2, 5, 8, 9, 17, 31, 57}) {
    requests.push_back(greedy_request(random_prompt(random, length), kWindow + 1));
    if (length % 2 == 1) requests.back().sampling.prompt_logprobs = -1;
  }
  for (const ReplayMode replay : {ReplayMode::kOff, ReplayMode::kBounded, ReplayMode::kExact, ReplayMode::kStep}) {
    EngineConfig config = graph_config(GetParam().checkpoint, replay, {});
    config.dtype = GetParam().dtype;
    for (const int64_t budget : {1, 13, 2048}) {
      config.max_num_batched_tokens = budget;
      config.graph_buckets = {};
      const auto eager = Engine::load(data_path(GetParam().checkpoint), config);
      const auto want = run(*eager, requests);
      for (const auto& bucket : kBuckets) {
        if (bucket <= std::max(budget, config.max_num_seqs)) config.graph_buckets.push_back(bucket);
      }
      const auto engine = Engine::load(data_path(GetParam().checkpoint), config);
      const auto got = run(*engine, requests);
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_TRUE(got[i] == want[i]) << "request " << i << ", mode " << static_cast<int>(replay) << ", budget "
                                       << budget;
      }
    }
  }
}

// Behind a hit the encoder layers rebuild window KV, on fewer rows from layer to layer or under a window floor.
TEST_P(GraphEngineTest, EqualsEagerBehindPrefixCacheHits) {
  std::mt19937 random(17);
  const auto prompt = random_prompt(random, 120);  // longer than what exact replay and rebuild reach back
  for (const ReplayMode replay : {ReplayMode::kBounded, ReplayMode::kExact}) {
    for (const int64_t suffix : {1, 9}) {
      std::vector<int32_t> longer = prompt;
      for (const int32_t token : random_prompt(random, suffix)) longer.push_back(token);
      EngineConfig config = graph_config(GetParam().checkpoint, replay, {});
      config.dtype = GetParam().dtype;
      config.enable_prefix_caching = true;
      config.max_num_batched_tokens = 128;
      std::vector<Generated> results;
      for (const auto& buckets : {std::vector<int64_t>{}, {1, 2, 4, 8, 24, 128}}) {
        config.graph_buckets = buckets;
        const auto engine = Engine::load(data_path(GetParam().checkpoint), config);
        run(*engine, {greedy_request(prompt, 1)});
        results.push_back(run(*engine, {greedy_request(longer, kWindow + 1)}).front());
        EXPECT_GT(results.back().metrics.cached_rows, 0);
      }
      EXPECT_TRUE(results[0] == results[1]) << "mode " << static_cast<int>(replay) << ", suffix " << suffix;
    }
  }
}

// The padding rows' token is 0: its embedding makes the padding rows of every layer NaN.
TEST_P(GraphEngineTest, PaddingReachesNothingAlsoAsNaN) {
  const std::string source = data_path(GetParam().checkpoint);
  const TemporaryFolder folder;
  for (const auto& entry : std::filesystem::directory_iterator(source)) {
    if (entry.path().filename() != "model.safetensors") {
      std::filesystem::create_symlink(entry.path(), folder.path() + "/" + entry.path().filename().string());
    }
  }
  const SafetensorsFile file(source + "/model.safetensors");
  std::string bytes = read_text(source + "/model.safetensors");
  const StoredTensor& embed = file.tensors().at("embed.weight");
  // Nearly the largest bfloat16: the first sum of two makes it infinite, and the first norm after that NaN.
  std::vector<float> row(embed.bytes / static_cast<size_t>(embed.shape[0]) / sizeof(float), 3.38e38f);
  ASSERT_EQ(embed.dtype, StoredDtype::kF32);
  std::memcpy(bytes.data() + embed.offset, row.data(), row.size() * sizeof(float));
  folder.write("model.safetensors", bytes);

  std::mt19937 random(3);
  for (const ReplayMode replay : {ReplayMode::kOff, ReplayMode::kBounded}) {
    EngineConfig config = graph_config(GetParam().checkpoint, replay, {});
    config.dtype = GetParam().dtype;
    const auto eager = Engine::load(source, config);
    config.graph_buckets = {8, 24};
    const auto poisoned = Engine::load(folder.path(), config);
    std::vector<Request> requests;
    for (const int64_t length : {3, 9, 30})
      requests.push_back(greedy_request(random_prompt(random, length), kWindow + 3));
    const auto want = run(*eager, requests);
    const auto got = run(*poisoned, requests);
    for (size_t i = 0; i < got.size(); ++i) {
      for (const int32_t token : want[i].tokens) ASSERT_NE(token, 0) << "choose another prompt: token 0 is poisoned";
      EXPECT_TRUE(got[i] == want[i]) << "request " << i;
    }
    // The poison is there: a prompt with token 0 cannot be served.
    Request zero = greedy_request({5, 0, 6}, 1);
    zero.replay = ReplayMode::kOff;
    poisoned->submit(zero);
    const auto outputs = poisoned->step();
    ASSERT_EQ(outputs.size(), 1u);
    EXPECT_FALSE(outputs.front().error.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, GraphEngineTest,
                         ::testing::Values(Setting{"v41-tiny", Dtype::kFloat32},
                                           Setting{"v41-tiny-engram", Dtype::kFloat32},
                                           Setting{"v41-tiny-quant", Dtype::kBFloat16}));

// A model of one state per row, the row's token id, that writes down how the two parts of its walk were run. Its replay
// adds 1000.
class RecordingModel final : public Model {
 public:
  struct Call {
    std::string stage;
    int64_t rows = 0;
    int64_t padding = 0;
  };

  explicit RecordingModel(ModelFacts facts) : facts_(std::move(facts)) {}

  const ModelFacts& facts() const override { return facts_; }
  Rows embed(const StepInputs& inputs) override { return {inputs.token_ids.clone()}; }
  void receive(int64_t layer, Rows& rows, KvCache&) override {
    if (layer == 0) record("encoder", rows[0].size(0));
  }
  void compute(int64_t layer, Rows& rows, KvCache&) override {
    EXPECT_EQ(get_forward_context().num_rows, rows[0].size(0));
    if (layer + 1 != facts_.num_encoder_layers) return;
    record("replay", rows[0].size(0));
    rows[0] = rows[0].add(1000);
  }
  at::Tensor finish(const Rows& rows) override { return rows[0]; }
  at::Tensor logits(const at::Tensor& hidden_states) override { return hidden_states; }
  int64_t weight_bytes() const override { return 0; }

  std::vector<Call> calls;

 private:
  void record(const char* stage, int64_t rows) {
    const ForwardContext& context = get_forward_context();
    EXPECT_EQ(context.num_rows, rows);
    const at::Tensor padding =
        context.attention.sequence_index.narrow(0, rows - context.num_padding_rows, context.num_padding_rows);
    EXPECT_TRUE(padding.eq(-1).all().item<bool>());
    for (const at::Tensor& slots : {context.attention.cells[0].slots, context.attention.positions}) {
      EXPECT_TRUE(slots.narrow(0, rows - context.num_padding_rows, context.num_padding_rows).eq(0).all().item<bool>());
    }
    calls.push_back({stage, rows, context.num_padding_rows});
  }

  ModelFacts facts_;
};

// Steps of one request through the dispatcher with both models.
class GraphDispatchTest : public ::testing::Test {
 protected:
  GraphDispatchTest() {
    for (int32_t i = 0; i < 100; ++i) tokens_.push_back(i + 3);
  }

  // Runs rows [start, start + rows), with `kept` of them for the replay layers (0 = no plan), and returns the last
  // row's output.
  int64_t forward(int64_t start, int32_t rows, int64_t kept, bool narrows = false) {
    if (kept == 0) return run_step(start, rows, nullptr);
    const int64_t end = start + rows;
    auto row_plan = std::make_shared<RowPlan>();
    row_plan->layers.resize(static_cast<size_t>(facts_.num_layers()));
    const auto cut = static_cast<size_t>(facts_.num_encoder_layers - 1);
    for (size_t layer = cut; layer < row_plan->layers.size(); ++layer) {
      const bool last = layer + 1 == row_plan->layers.size();
      row_plan->layers[layer].first_computed =
          last ? end - 1 : end - kept + (narrows ? static_cast<int64_t>(layer - cut) : 0);
    }
    return run_step(start, rows, row_plan);
  }

  int64_t run_step(int64_t start, int32_t rows, std::shared_ptr<const RowPlan> row_plan) {
    StepPlan plan{.num_rows = rows};
    plan.sequences.push_back({.id = 1,
                              .tokens = tokens_,
                              .prompt_length = 100,
                              .start = start,
                              .num_rows = rows,
                              .first_logits_row = rows - 1,
                              .samples = true,
                              .row_plan = std::move(row_plan)});
    for (int32_t page = 0; page < 25; ++page) {
      for (const int32_t group : {0, 1}) {
        plan.block_table_updates.push_back({.group = group, .state_slot = 0, .index = page, .page = page + 1});
      }
    }
    model_.calls.clear();
    return dispatcher_.forward(state_.prepare(plan)).hidden_states.item<int64_t>();
  }

  std::vector<std::pair<std::string, int64_t>> stages() const {
    std::vector<std::pair<std::string, int64_t>> stages;
    for (const auto& call : model_.calls) stages.emplace_back(call.stage, call.rows);
    return stages;
  }

  using Stages = std::vector<std::pair<std::string, int64_t>>;

  c10::InferenceMode inference_;
  const ModelFacts facts_ = make_model_facts(load_model_config(data_path("v41-tiny")));
  std::vector<int32_t> tokens_;
  RecordingModel model_{facts_};
  KvCache cache_{facts_, {.page_size = 4, .num_pages = {30, 30}, .max_num_seqs = 4, .dtype = at::kFloat}};
  ModelState state_ = ModelStateBuilder(facts_).max_num_seqs(4).max_model_len(100).page_size(4).build();
  GraphedWalk graphs_{model_, ReplayDispatcher::cut_layer(facts_), {.buckets = kBuckets, .max_num_seqs = 4}};
  ReplayDispatcher dispatcher_{model_, &graphs_, cache_};
};

TEST_F(GraphDispatchTest, WholeBatchInTheSmallestGraphThatHoldsIt) {
  EXPECT_EQ(forward(0, 3, 0), 1005);
  EXPECT_EQ(stages(), (Stages{{"encoder", 4}, {"encoder", 4}, {"replay", 4}, {"replay", 4}})) << "made, then run";
  EXPECT_EQ(forward(3, 3, 0), 1008);
  EXPECT_EQ(stages(), (Stages{{"encoder", 4}, {"replay", 4}}));
  EXPECT_EQ(model_.calls[0].padding, 1);
  EXPECT_EQ(forward(6, 4, 0), 1012);
  EXPECT_EQ(model_.calls[0].padding, 0);
  forward(10, 1, 0);
  EXPECT_EQ(forward(11, 1, 0), 1014);
  EXPECT_EQ(stages(), (Stages{{"encoder", 1}, {"replay", 1}}));
}

TEST_F(GraphDispatchTest, StepsBeyondTheLargestBucketRunEagerly) {
  EXPECT_EQ(forward(0, 25, 0), 1027);
  EXPECT_EQ(stages(), (Stages{{"encoder", 25}, {"replay", 25}}));
}

TEST_F(GraphDispatchTest, TrimmedStepsRunTheirKeptRowsFromAGraphOfTheirOwn) {
  EXPECT_EQ(forward(0, 20, 7), 1022);
  EXPECT_EQ(forward(20, 30, 7), 1052);
  EXPECT_EQ(stages(), (Stages{{"encoder", 30}, {"replay", 8}}));
  EXPECT_EQ(model_.calls[1].padding, 1);
}

TEST_F(GraphDispatchTest, TrimmedStepsWithoutAGraphRunTheirKeptRowsEagerly) {
  EXPECT_EQ(forward(0, 40, 25), 1042);
  EXPECT_EQ(stages(), (Stages{{"encoder", 40}, {"replay", 25}}));
}

TEST_F(GraphDispatchTest, AnEncoderThatReadsANarrowerWindowRunsEagerly) {
  auto row_plan = std::make_shared<RowPlan>();
  row_plan->layers.resize(static_cast<size_t>(facts_.num_layers()));
  for (LayerRows& layer : row_plan->layers) layer.window_floor = 2;
  EXPECT_EQ(run_step(0, 3, row_plan), 1005);
  EXPECT_EQ(stages(), (Stages{{"encoder", 3}, {"replay", 3}}));
}

TEST_F(GraphDispatchTest, RowsThatNarrowFromLayerToLayerRunEagerly) {
  EXPECT_EQ(forward(0, 20, 7, /*narrows=*/true), 1022);
  EXPECT_EQ(stages(), (Stages{{"encoder", 20}, {"replay", 7}}));
}

// The graph and the eager layers share the cut: a step of one kind leaves nothing behind for the next.
TEST_F(GraphDispatchTest, StepsOfEveryKindTakeTurns) {
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(forward(0, 3, 0), 1005);
    EXPECT_EQ(forward(3, 30, 7), 1035);
    EXPECT_EQ(forward(33, 30, 25), 1065);
    EXPECT_EQ(forward(63, 5, 0), 1070);
    EXPECT_EQ(forward(68, 8, 2), 1078);
  }
}

}  // namespace
}  // namespace reprise::testing
