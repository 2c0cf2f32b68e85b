#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <span>

#include "context/kv_cache.h"
#include "reprise/model_facts.h"
#include "reprise/step_inputs.h"

namespace reprise {

struct ModelOptions {
  at::ScalarType dtype{};      // float32 or bfloat16
  bool cache_rounding = true;  // the released cache formats
  int64_t max_rows = 0;        // rows of a step at most
};

// A step's rows as one layer hands them to the next: tensors with one row per row of the step, hidden states first. No
// heap: a step in a graph allocates nothing.
using Rows = c10::SmallVector<at::Tensor, 4>;

// A decoder as its layers. Between the halves of a layer rows may be dropped (replay/layer_walk.h): a layer has then
// cached what later rows read of it, and what is left of the forward concerns only rows whose output somebody wants. A
// model never sees which rows those are: all it knows stands in its arguments and the current forward context.
class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelFacts& facts() const = 0;

  // The rows that enter the first layer.
  virtual Rows embed(const StepInputs& inputs) = 0;
  // For every row that enters a layer: caches KV. Rows are changed in place or replaced.
  virtual void receive(int64_t layer, Rows& rows, KvCache& cache) = 0;
  // For the rows that are left: attention, feed-forward.
  virtual void compute(int64_t layer, Rows& rows, KvCache& cache) = 0;
  // Per-row results in buffers of fixed size that `layer` or a later one reads and that an earlier one has made: where
  // rows are dropped between the layer's halves, these are compacted to their first rows.
  virtual std::span<const at::Tensor> row_buffers([[maybe_unused]] int64_t layer) const { return {}; }

  // Final hidden states [rows, hidden_size] of the last layer's rows, and logits [rows, vocab_size] float32 of those.
  virtual at::Tensor finish(const Rows& rows) = 0;
  virtual at::Tensor logits(const at::Tensor& hidden_states) = 0;

  virtual int64_t weight_bytes() const = 0;
};

}  // namespace reprise
