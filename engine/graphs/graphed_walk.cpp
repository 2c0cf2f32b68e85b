#include "graphs/graphed_walk.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "replay/layer_walk.h"
#include "reprise/error.h"

namespace reprise {

// A range's graph for one bucket, with the buffers that it reads.
struct GraphedWalk::Stage {
  StepInputs inputs;
  Rows rows;                           // those that enter the range; none for the encoder, which embeds them
  std::vector<FixedContext> contexts;  // of the sets of `inputs`
  std::unique_ptr<GraphRunner> runner;
  std::vector<Rows> first_rows;  // the outputs' first n rows, made when the first n rows are run

  const Rows& run(int64_t num_rows) {
    const auto n = static_cast<size_t>(num_rows);
    const GraphRunner::Outputs& outputs = runner->run();
    if (first_rows.size() <= n) first_rows.resize(n + 1);
    if (first_rows[n].empty()) {
      for (const at::Tensor& output : outputs) first_rows[n].push_back(output.narrow(0, 0, num_rows));
    }
    return first_rows[n];
  }

  void add_set(const ForwardContext& like, int64_t num_rows, int64_t max_num_seqs) {
    contexts.emplace_back(like, num_rows, max_num_seqs);
    RowSet& set = inputs.sets.emplace_back();
    set.kept.append(0, num_rows);
    set.forward_context = contexts.back().context();
  }
};

namespace {

const ForwardContext& context_of(const StepInputs& inputs, int32_t set) {
  return *inputs.sets[static_cast<size_t>(set)].forward_context;
}

// The set of the layers behind the cut, where there are any.
int32_t set_behind(const StepInputs& inputs, int64_t cut_layer) {
  return inputs.set_of_layer[std::min(static_cast<size_t>(cut_layer) + 1, inputs.set_of_layer.size() - 1)];
}

}  // namespace

GraphedWalk::GraphedWalk(Model& model, int64_t cut_layer, GraphOptions options)
    : model_(model),
      cut_layer_(cut_layer),
      num_layers_(model.facts().num_layers()),
      options_(std::move(options)),
      encoders_(options_.buckets.size()),
      replays_(options_.buckets.size()),
      finishes_(options_.buckets.size()) {}

GraphedWalk::~GraphedWalk() = default;

size_t GraphedWalk::bucket_index(int64_t num_rows) const {
  const auto bucket = std::lower_bound(options_.buckets.begin(), options_.buckets.end(), num_rows);
  REPRISE_ENSURE(bucket != options_.buckets.end(), "no graph holds ", num_rows, " rows");
  return static_cast<size_t>(bucket - options_.buckets.begin());
}

void GraphedWalk::make_rows(Stage& stage, int64_t num_rows, const Rows& like) const {
  for (const at::Tensor& state : like) {
    stage.rows.push_back(make_fixed_rows(state, num_rows));
    if (options_.poison) stage.rows.back().fill_(std::numeric_limits<double>::quiet_NaN());
  }
}

std::unique_ptr<GraphedWalk::Stage> GraphedWalk::make_encoder(int64_t num_rows, const StepInputs& like,
                                                              KvCache& cache) {
  auto stage = std::make_unique<Stage>();
  stage->add_set(context_of(like, 0), num_rows, options_.max_num_seqs);
  StepInputs& inputs = stage->inputs;
  inputs.token_ids = make_fixed_rows(like.token_ids, num_rows);
  for (const at::Tensor& rows : like.engram_rows) inputs.engram_rows.push_back(make_fixed_rows(rows, num_rows));
  inputs.set_of_layer.assign(static_cast<size_t>(num_layers_), 0);
  stage->runner = make_graph_runner(like.token_ids.device(), [this, stage = stage.get(), &cache] {
    Rows rows = model_.embed(stage->inputs);
    walk(model_, {0, compute_half(cut_layer_)}, stage->inputs, cache, rows);
    return rows;
  });
  return stage;
}

std::unique_ptr<GraphedWalk::Stage> GraphedWalk::make_replay(int64_t num_rows, const Rows& like,
                                                             const StepInputs& inputs, KvCache& cache) {
  auto stage = std::make_unique<Stage>();
  // The cut layer's context and that of the layers behind it, which may read a narrower window.
  stage->contexts.reserve(2);
  stage->add_set(context_of(inputs, inputs.set_of_layer[static_cast<size_t>(cut_layer_)]), num_rows,
                 options_.max_num_seqs);
  stage->add_set(context_of(inputs, set_behind(inputs, cut_layer_)), num_rows, options_.max_num_seqs);
  stage->inputs.set_of_layer.assign(static_cast<size_t>(num_layers_), 1);
  std::fill_n(stage->inputs.set_of_layer.begin(), cut_layer_ + 1, 0);
  make_rows(*stage, num_rows, like);
  stage->runner = make_graph_runner(like[0].device(), [this, stage = stage.get(), &cache] {
    Rows rows = stage->rows;
    walk(model_, {compute_half(cut_layer_), receive_half(num_layers_)}, stage->inputs, cache, rows);
    return rows;
  });
  return stage;
}

std::unique_ptr<GraphedWalk::Stage> GraphedWalk::make_finish(int64_t num_rows, const Rows& like) {
  auto stage = std::make_unique<Stage>();
  make_rows(*stage, num_rows, like);
  stage->runner = make_graph_runner(like[0].device(), [this, stage = stage.get()] {
    const at::Tensor hidden_states = model_.finish(stage->rows);
    return GraphRunner::Outputs{hidden_states, model_.logits(hidden_states)};
  });
  return stage;
}

const Rows& GraphedWalk::run_encoder(const StepInputs& inputs, KvCache& cache) {
  const ForwardContext& context = context_of(inputs, 0);
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

const Rows& GraphedWalk::run_replay(const Rows& rows, const StepInputs& inputs, KvCache& cache) {
  const ForwardContext& context = context_of(inputs, inputs.set_of_layer[static_cast<size_t>(cut_layer_)]);
  const size_t bucket = bucket_index(context.num_rows);
  std::unique_ptr<Stage>& stage = replays_[bucket];
  if (!stage) stage = make_replay(options_.buckets[bucket], rows, inputs, cache);
  stage->contexts[0].set(context);
  stage->contexts[1].set(context_of(inputs, set_behind(inputs, cut_layer_)));
  for (size_t i = 0; i < rows.size(); ++i) set_first_rows(stage->rows[i], rows[i]);
  return stage->run(context.num_rows);
}

StepOutputs GraphedWalk::finish(const StepInputs& inputs, const Rows& rows) {
  const int64_t num_rows = inputs.output_rows.num_rows();
  // Rows whose hidden state alone is wanted would need logits too in a graph.
  const bool wants_all_logits = num_rows > 0 && inputs.logits_rows.num_rows() == num_rows;
  if (!wants_all_logits || num_rows > options_.buckets.back()) return reprise::finish(model_, inputs, rows);
  const size_t bucket = bucket_index(num_rows);
  std::unique_ptr<Stage>& stage = finishes_[bucket];
  if (!stage) stage = make_finish(options_.buckets[bucket], rows);
  for (size_t i = 0; i < rows.size(); ++i) set_first_rows(stage->rows[i], rows[i], inputs.output_rows);
  const Rows& outputs = stage->run(num_rows);
  return {.hidden_states = outputs[0], .logits = outputs[1]};
}

}  // namespace reprise
