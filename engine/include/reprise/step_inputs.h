#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "reprise/forward_context.h"
#include "reprise/row_runs.h"

namespace reprise {

// Rows that take part together: a sub-batch with attention metadata and a context of its own, like a microbatch.
struct RowSet {
  RowRuns kept;  // of the set before; all of them where only the window floor changes. Empty for the batch
  std::shared_ptr<ForwardContext> forward_context;
};

// What a model's forward takes.
struct StepInputs {
  at::Tensor token_ids;                 // [rows] int64
  std::vector<at::Tensor> engram_rows;  // per Engram layer [rows, tables] int64: rows of its embedding table
  std::vector<RowSet> sets;             // the first is the batch; each later one keeps rows of the one before
  // [num_layers] the set that a layer computes, once it has received and cached the rows of the layer before it (the
  // first one: the batch). Later layers run on these rows too.
  std::vector<int32_t> set_of_layer;
  RowRuns output_rows;  // of the last layer's rows: those whose final hidden state is wanted
  RowRuns logits_rows;  // of the output rows: those whose logits are wanted

  const std::shared_ptr<ForwardContext>& forward_context() const { return sets.front().forward_context; }
  // The set whose rows enter a layer.
  int32_t received_set(int64_t layer) const { return layer == 0 ? 0 : set_of_layer[static_cast<size_t>(layer) - 1]; }
};

// What a model's forward returns.
struct StepOutputs {
  at::Tensor hidden_states;  // [outputs, hidden_size] after the final norm
  at::Tensor logits;         // [logits, vocab_size] float32
};

}  // namespace reprise
