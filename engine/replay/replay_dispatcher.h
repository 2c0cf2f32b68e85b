#pragma once

#include <cstdint>
#include <vector>

#include "context/kv_cache.h"
#include "models/model.h"
#include "replay/step_path.h"
#include "reprise/config.h"
#include "reprise/decoder_replay_layers.h"
#include "reprise/step_inputs.h"

namespace reprise {

// Runs a model's forward: decides for each step whether its layers run one by one or from captured graphs, and the
// replay layers on the whole batch or on the kept rows.
class ReplayDispatcher {
 public:
  // `graphs` runs the model's stages from graphs of the row counts in `buckets` (ascending); null with no buckets.
  // Model, graphs and cache outlive the dispatcher.
  ReplayDispatcher(const ModelConfig& config, Model& model, Model* graphs, std::vector<int64_t> buckets,
                   KvCache& cache);

  ReplayDispatcher(const ReplayDispatcher&) = delete;  // the replay layers call back
  ReplayDispatcher& operator=(const ReplayDispatcher&) = delete;

  // The same outputs bit for bit, whichever way the step runs.
  StepOutputs forward(const StepInputs& inputs);

  StepFacts facts_of(const StepInputs& inputs) const;

 private:
  // run_replay on the rows that the last KV source keeps, under their context.
  Model::States run_kept_rows(Model& model, const Model::States& states, const StepInputs& inputs);

  Model& model_;
  Model* graphs_;
  std::vector<int64_t> buckets_;
  KvCache& cache_;
  size_t cut_layer_;  // the last KV source, within which the rows are cut
  DecoderReplayLayers replay_layers_;
  // The step under way: what run_layers needs beside the states.
  const StepInputs* inputs_ = nullptr;
  Model* replay_model_ = nullptr;
};

}  // namespace reprise
