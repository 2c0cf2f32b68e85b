#include "replay/replay_dispatcher.h"

#include <algorithm>

namespace reprise {

ReplayDispatcher::ReplayDispatcher(const ModelConfig& config, Model& model, KvCache& cache)
    : model_(model),
      cache_(cache),
      cut_layer_(static_cast<size_t>(std::max<int64_t>(config.num_encoder_layers() - 1, 0))),
      // No row buffers: the last KV source selects anew, for the kept rows only.
      replay_layers_(config.sliding_window, [this](const Model::States& states) { return model_.run_replay(states, *inputs_, cache_); },
                     {}) {}

StepOutputs ReplayDispatcher::forward(const StepInputs& inputs) {
  const ScopedForwardContext batch(inputs.forward_context);
  inputs_ = &inputs;
  const Model::States states = model_.run_encoder(inputs, cache_);
  const KeptRows& kept = inputs.layers[cut_layer_];
  // Where only the window floor changes all rows stay, under a context of their own.
  const ScopedForwardContext context(kept.forward_context ? kept.forward_context : inputs.forward_context);
  replay_layers_.rows = kept.rows;
  replay_layers_.forward_context = kept.forward_context;
  return model_.finish(replay_layers_.run_kept(states), inputs);
}

}  // namespace reprise
