#include "graphs/replay_dispatcher.h"

#include <algorithm>

#include "replay/layer_walk.h"

namespace reprise {

int64_t ReplayDispatcher::cut_layer(const ModelFacts& model) {
  return std::max<int64_t>(model.num_encoder_layers - 1, 0);
}

ReplayDispatcher::ReplayDispatcher(Model& model, GraphedWalk* graphs, KvCache& cache)
    : model_(model),
      graphs_(graphs),
      cache_(cache),
      cut_layer_(cut_layer(model.facts())),
      num_layers_(model.facts().num_layers()) {}

StepFacts ReplayDispatcher::facts_of(const StepInputs& inputs) const {
  const auto num_rows = [&](int32_t set) { return inputs.sets[static_cast<size_t>(set)].forward_context->num_rows; };
  const auto set_of = [&](int64_t layer) { return inputs.set_of_layer[static_cast<size_t>(layer)]; };
  StepFacts facts{.num_rows = num_rows(0), .num_kept_rows = num_rows(set_of(cut_layer_))};
  if (graphs_ != nullptr) facts.buckets = graphs_->buckets();
  facts.encoder_narrows = inputs.received_set(cut_layer_) != 0;
  const int64_t first = cut_layer_ + 1;
  if (first < num_layers_) facts.replay_narrows = num_rows(set_of(first)) != facts.num_kept_rows;
  for (int64_t layer = first + 1; layer < num_layers_; ++layer) {
    const bool drops_rows = num_rows(set_of(layer)) != num_rows(set_of(layer - 1));
    const bool is_last = layer + 1 == num_layers_;
    if (is_last && drops_rows) continue;
    facts.replay_narrows |= set_of(layer) != set_of(layer - 1);
  }
  return facts;
}

StepOutputs ReplayDispatcher::forward(const StepInputs& inputs) {
  const StepPath path = choose_step_path(facts_of(inputs));
  const bool replay_in_graph = path == StepPath::kWholeBatchInGraph || path == StepPath::kKeptRowsInGraph;
  Rows rows;
  if (path == StepPath::kWholeBatchInGraph) {
    rows = graphs_->run_encoder(inputs, cache_);
  } else {
    rows = model_.embed(inputs);
    walk(model_, {0, compute_half(cut_layer_)}, inputs, cache_, rows);
  }
  if (!replay_in_graph) {
    walk(model_, {compute_half(cut_layer_), receive_half(num_layers_)}, inputs, cache_, rows);
    return finish(model_, inputs, rows);
  }
  walk_to_compute(model_, cut_layer_, inputs, rows);
  rows = graphs_->run_replay(rows, inputs, cache_);
  // The graph's last layer computed all of its rows: the wanted ones are among them.
  if (num_layers_ - 1 > cut_layer_ + 1) walk_to_compute(model_, num_layers_ - 1, inputs, rows);
  return graphs_->finish(inputs, rows);
}

}  // namespace reprise
