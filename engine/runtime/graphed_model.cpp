#include "runtime/graphed_model.h"

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

  States run(int64_t num_rows) const {
    States outputs;
    for (const at::Tensor& output : runner->run()) outputs.push_back(output.narrow(0, 0, num_rows));
    return outputs;
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
      replays_(options_.buckets.size()) {}

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

std::unique_ptr<GraphedModel::Stage> GraphedModel::make_replay(int64_t num_rows, const States& like,
                                                               const ForwardContext& context, KvCache& cache) {
  auto stage = std::make_unique<Stage>();
  for (int i = 0; i < 2; ++i)
    stage->contexts.emplace_back(context, num_rows, options_.max_num_seqs, /*publishes=*/false);
  for (const at::Tensor& state : like) {
    stage->states.push_back(make_fixed_rows(state, num_rows));
    if (options_.poison) stage->states.back().fill_(std::numeric_limits<double>::quiet_NaN());
  }
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

}  // namespace reprise
