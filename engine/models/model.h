#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "checkpoint/weight_source.h"
#include "context/kv_cache.h"
#include "layers/row_buffers.h"
#include "reprise/config.h"
#include "reprise/step_inputs.h"

namespace reprise {

struct ModelOptions {
  at::ScalarType dtype{};      // float32 or bfloat16
  bool cache_rounding = true;  // the released cache formats
  int64_t max_rows = 0;        // rows of a step at most
};

// A decoder in three stages. Between the first two the rows may be trimmed: every layer up to the last KV source has
// published what later rows read, so what is left of the forward concerns only the rows whose output somebody wants.
class Model {
 public:
  using States = c10::SmallVector<at::Tensor, 4>;  // no heap: a step in a graph allocates nothing

  virtual ~Model() = default;

  // Runs the encoder layers on the batch, under the current context, up to the point where the last KV source has
  // published. Returns per-row states for run_replay.
  virtual States run_encoder(const StepInputs& inputs, KvCache& cache) = 0;
  // Runs the rest of the last KV source and the replay layers on the rows that `states` hold, under the current
  // context.
  virtual States run_replay(const States& states, const StepInputs& inputs, KvCache& cache) = 0;
  // Final norm and head of the wanted rows of run_replay's states.
  virtual StepOutputs finish(const States& states, const StepInputs& inputs) = 0;

  // Per-row results that run_replay takes from run_encoder beside the states: where the rows are trimmed in between,
  // these are compacted in place to their first rows.
  virtual std::vector<at::Tensor> row_buffers() const { return {}; }

  virtual int64_t weight_bytes() const = 0;
};

// The model that config.model_type names, with its weights taken from `weights` (finish() is called).
std::unique_ptr<Model> make_model(const ModelConfig& config, const ModelOptions& options, WeightSource& weights);

}  // namespace reprise
