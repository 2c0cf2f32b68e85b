#pragma once

#include "context/kv_cache.h"
#include "graphs/graphed_walk.h"
#include "models/model.h"
#include "replay/step_path.h"
#include "reprise/step_inputs.h"

namespace reprise {

// Runs a model's forward: decides for each step whether its layers run one by one or from captured graphs, and the
// replay layers on the whole batch or on the kept rows.
class ReplayDispatcher {
 public:
  // The layer within which the rows are cut to those that the replay layers run on: the last that publishes, or the
  // first where none does.
  static int64_t cut_layer(const ModelFacts& model);

  // `graphs` run the same model, cut at cut_layer(); null without graphs. All outlive the dispatcher.
  ReplayDispatcher(Model& model, GraphedWalk* graphs, KvCache& cache);

  // The same outputs bit for bit, whichever way the step runs.
  StepOutputs forward(const StepInputs& inputs);

  StepFacts facts_of(const StepInputs& inputs) const;

 private:
  Model& model_;
  GraphedWalk* graphs_;
  KvCache& cache_;
  int64_t cut_layer_;
  int64_t num_layers_;
};

}  // namespace reprise
