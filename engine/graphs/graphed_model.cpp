#include "graphs/graphed_model.h"

#include <ATen/ops/arange.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "reprise/error.h"

namespace reprise {

// A stage's graph for one bucket, with the buffers that it reads.
struct GraphedModel::Stage {
  StepInputs inputs;
  States states;                       // run_replay's; none for the encoder
  std::vector<FixedContext> contexts;  // the batch's; for run_replay the last KV source's and the replay layers'
  std::unique_ptr<GraphRunner> runner;
  std::vector<States> first_rows;  // the outputs' first n rows, made when the first n rows are run

  const States& run(int64_t num_rows) {
    const auto n = static_cast<size_t>(num_rows);
    const GraphRunner::Outputs& outputs = runner->run();
    if (first_rows.size() <= n) first_rows.resize(n + 1);
    if (first_rows[n].empty()) {
      States rows;
      for (const at::Tensor& output : outputs) rows.push_back(output.narrow(0, 0, num_rows));
      first_rows[n] = std::move(rows);
    }
    return first_rows[n];
  }
};

namespace {

const std::shared_ptr<ForwardContext>& replay_context(const StepInputs& inputs, size_t first_layer,
                                                      const std::shared_ptr<ForwardContext>& current) {
  const bool has_own = first_layer < inputs.layers.size() && inputs.layers[first_layer].forward_context;
  return has_own ? inputs.layers[first_layer].forward_context : current;
}

}  // namespace

GraphedModel::GraphedModel(const ModelConfig& config, Model& model, GraphOptions options)
    : config_(config),
      model_(model),
      options_(std::move(options)),
      encoders_(options_.buckets.size()),
      replays_(options_.buckets.size()),
      finishes_(options_.buckets.size()) {}

GraphedModel::~GraphedModel() = default;

size_t GraphedModel::bucket_index(int64_t num_rows) const {
  const auto bucket = std::lower_bound(options_.buckets.begin(), options_.buckets.end(), num_rows);
  REPRISE_ENSURE(bucket != options_.buckets.end(), "no graph holds ", num_rows, " rows");
  return static_cast<size_t>(bucket - options_.buckets.begin());
}

std::unique_ptr<GraphedModel::Stage> GraphedModel::make_encoder(int64_t num_rows, const StepInputs& like,
                                                                KvCache& cache) {
  auto stage = std::make_unique<Stage>();
  stage->contexts.emplace_back(*like.forward_context, num_rows, options_.max_num_seqs, /*publishes=*/true);
  StepInputs& inputs = stage->inputs;
  inputs.token_ids = make_fixed_rows(like.token_ids, num_rows);
  for (const at::Tensor& rows : like.engram_rows) inputs.engram_rows.push_back(make_fixed_rows(rows, num_rows));
  inputs.forward_context = stage->contexts[0].context();
  inputs.layers.resize(like.layers.size());
  stage->runner = make_graph_runner(like.token_ids.device(), [this, stage = stage.get(), &cache] {
    const ScopedForwardContext scope(stage->inputs.forward_context);
    return model_.run_encoder(stage->inputs, cache);
  });
  return stage;
}

void GraphedModel::make_states(Stage& stage, int64_t num_rows, const States& like) const {
  for (const at::Tensor& state : like) {
    stage.states.push_back(make_fixed_rows(state, num_rows));
    if (options_.poison) stage.states.back().fill_(std::numeric_limits<double>::quiet_NaN());
  }
}

std::unique_ptr<GraphedModel::Stage> GraphedModel::make_replay(int64_t num_rows, const States& like,
                                                               const ForwardContext& context, KvCache& cache) {
  auto stage = std::make_unique<Stage>();
  for (int i = 0; i < 2; ++i)
    stage->contexts.emplace_back(context, num_rows, options_.max_num_seqs, /*publishes=*/false);
  make_states(*stage, num_rows, like);
  stage->inputs.forward_context = stage->contexts[0].context();
  stage->inputs.layers.resize(static_cast<size_t>(config_.num_hidden_layers));
  for (auto layer = static_cast<size_t>(config_.num_encoder_layers()); layer < stage->inputs.layers.size(); ++layer) {
    stage->inputs.layers[layer].forward_context = stage->contexts[1].context();
  }
  stage->runner = make_graph_runner(like[0].device(), [this, stage = stage.get(), &cache] {
    const ScopedForwardContext scope(stage->inputs.forward_context);
    return model_.run_replay(stage->states, stage->inputs, cache);
  });
  return stage;
}

std::unique_ptr<GraphedModel::Stage> GraphedModel::make_finish(int64_t num_rows, const States& like) {
  auto stage = std::make_unique<Stage>();
  make_states(*stage, num_rows, like);
  stage->inputs.output_rows = at::arange(num_rows, like[0].options().dtype(at::kLong));
  stage->inputs.logits_rows = stage->inputs.output_rows;
  stage->runner = make_graph_runner(like[0].device(), [this, stage = stage.get()] {
    const StepOutputs outputs = model_.finish(stage->states, stage->inputs);
    return GraphRunner::Outputs{outputs.hidden_states, outputs.logits};
  });
  return stage;
}

Model::States GraphedModel::run_encoder(const StepInputs& inputs, KvCache& cache) {
  const ForwardContext& context = get_forward_context();
  const size_t bucket = bucket_index(context.num_rows);
  std::unique_ptr<Stage>& stage = encoders_[bucket];
  if (!stage) stage = make_encoder(options_.buckets[bucket], inputs, cache);
  stage->contexts[0].set(context);
  set_first_rows(stage->inputs.token_ids, inputs.token_ids);
  pad_rows(stage->inputs.token_ids, context.num_rows);
  for (size_t i = 0; i < inputs.engram_rows.size(); ++i) {
    set_first_rows(stage->inputs.engram_rows[i], inputs.engram_rows[i]);
    pad_rows(stage->inputs.engram_rows[i], context.num_rows);
  }
  return stage->run(context.num_rows);
}

Model::States GraphedModel::run_replay(const States& states, const StepInputs& inputs, KvCache& cache) {
  const std::shared_ptr<ForwardContext> context = current_forward_context();
  const size_t bucket = bucket_index(context->num_rows);
  std::unique_ptr<Stage>& stage = replays_[bucket];
  if (!stage) stage = make_replay(options_.buckets[bucket], states, *context, cache);
  stage->contexts[0].set(*context);
  stage->contexts[1].set(*replay_context(inputs, static_cast<size_t>(config_.num_encoder_layers()), context));
  for (size_t i = 0; i < states.size(); ++i) set_first_rows(stage->states[i], states[i]);
  return stage->run(context->num_rows);
}

StepOutputs GraphedModel::finish(const States& states, const StepInputs& inputs) {
  const int64_t num_rows = inputs.output_rows.size(0);
  // Rows whose hidden state alone is wanted would need logits too in a graph.
  const bool wants_all_logits = num_rows > 0 && inputs.logits_rows.size(0) == num_rows;
  if (!wants_all_logits || num_rows > options_.buckets.back()) return model_.finish(states, inputs);
  const size_t bucket = bucket_index(num_rows);
  std::unique_ptr<Stage>& stage = finishes_[bucket];
  if (!stage) stage = make_finish(options_.buckets[bucket], states);
  for (size_t i = 0; i < states.size(); ++i) set_first_rows(stage->states[i], states[i], inputs.output_rows);
  const States& rows = stage->run(num_rows);
  return {.hidden_states = rows[0], .logits = rows[1]};
}

}  // namespace reprise
