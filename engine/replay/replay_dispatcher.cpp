#include "replay/replay_dispatcher.h"

#include <algorithm>
#include <utility>

#include "backends/rows.h"
#include "reprise/error.h"

namespace reprise {

ReplayDispatcher::ReplayDispatcher(const ModelConfig& config, Model& model, Model* graphs, std::vector<int64_t> buckets,
                                   KvCache& cache)
    : model_(model),
      graphs_(graphs),
      buckets_(std::move(buckets)),
      cache_(cache),
      cut_layer_(static_cast<size_t>(std::max<int64_t>(config.num_encoder_layers() - 1, 0))),
      replay_layers_(
          config.sliding_window,
          [this](const std::vector<at::Tensor>& states) {
            const Model::States outputs = replay_model_->run_replay({states.begin(), states.end()}, *inputs_, cache_);
            return std::vector<at::Tensor>(outputs.begin(), outputs.end());
          },
          model.row_buffers()) {
  REPRISE_ENSURE(buckets_.empty() || graphs_ != nullptr, "buckets without graphs to run");
}

StepFacts ReplayDispatcher::facts_of(const StepInputs& inputs) const {
  const KeptRows& cut = inputs.layers[cut_layer_];
  StepFacts facts{.num_rows = inputs.forward_context->num_rows, .buckets = buckets_};
  facts.num_kept_rows = cut.forward_context ? cut.forward_context->num_rows : facts.num_rows;
  for (size_t layer = 0; layer < cut_layer_; ++layer)
    facts.encoder_narrows |= inputs.layers[layer].forward_context != nullptr;
  const size_t first = cut_layer_ + 1;
  for (size_t layer = first; layer < inputs.layers.size(); ++layer) {
    const KeptRows& kept = inputs.layers[layer];
    const bool is_last = layer + 1 == inputs.layers.size() && layer > first;
    if (is_last && kept.rows.defined()) continue;
    facts.replay_narrows |= kept.rows.defined() || kept.forward_context != inputs.layers[first].forward_context;
  }
  return facts;
}

StepOutputs ReplayDispatcher::forward(const StepInputs& inputs) {
  const StepPath path = choose_step_path(facts_of(inputs));
  const bool replay_in_graph = path == StepPath::kWholeBatchInGraph || path == StepPath::kKeptRowsInGraph;
  const ScopedForwardContext batch(inputs.forward_context);
  Model& encoder = path == StepPath::kWholeBatchInGraph ? *graphs_ : model_;
  const Model::States states = encoder.run_encoder(inputs, cache_);

  const KeptRows& kept = inputs.layers[cut_layer_];
  // Where only the window floor changes all rows stay, under a context of their own.
  const ScopedForwardContext context(kept.forward_context ? kept.forward_context : inputs.forward_context);
  Model& model = replay_in_graph ? *graphs_ : model_;
  const Model::States last_states =
      kept.rows.defined() ? run_kept_rows(model, states, inputs) : model.run_replay(states, inputs, cache_);

  const at::Tensor& last_rows = inputs.layers.back().rows;
  if (!replay_in_graph || !last_rows.defined()) return model.finish(last_states, inputs);
  // The graph's last layer computed all of its rows: the wanted ones lie elsewhere.
  return model.finish(last_states,
                      {.output_rows = gather_rows(last_rows, inputs.output_rows), .logits_rows = inputs.logits_rows});
}

Model::States ReplayDispatcher::run_kept_rows(Model& model, const Model::States& states, const StepInputs& inputs) {
  const KeptRows& kept = inputs.layers[cut_layer_];
  inputs_ = &inputs;
  replay_model_ = &model;
  replay_layers_.rows = kept.rows;
  replay_layers_.forward_context = kept.forward_context;
  const std::vector<at::Tensor> outputs = replay_layers_.run_kept({states.begin(), states.end()});
  // Their context shares tensors with the batch's, whose memory is to serve the next step.
  replay_layers_.rows.reset();
  replay_layers_.forward_context = nullptr;
  return {outputs.begin(), outputs.end()};
}

}  // namespace reprise
