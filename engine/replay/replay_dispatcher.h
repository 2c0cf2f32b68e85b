#pragma once

#include <cstdint>

#include "context/kv_cache.h"
#include "models/model.h"
#include "reprise/config.h"
#include "reprise/decoder_replay_layers.h"
#include "reprise/step_inputs.h"

namespace reprise {

// Runs a model's forward, its replay layers on the whole batch or on the kept rows, as the step's inputs say.
class ReplayDispatcher {
 public:
  // `model` and `cache` outlive the dispatcher.
  ReplayDispatcher(const ModelConfig& config, Model& model, KvCache& cache);

  StepOutputs forward(const StepInputs& inputs);

 private:
  Model& model_;
  KvCache& cache_;
  size_t cut_layer_;  // the last KV source, within which the rows are cut
  const StepInputs* inputs_ = nullptr;
  DecoderReplayLayers replay_layers_;
};

}  // namespace reprise
