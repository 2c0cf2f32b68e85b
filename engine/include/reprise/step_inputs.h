#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "reprise/forward_context.h"

namespace reprise {

// The rows that a layer computes, once it has received and cached all of its rows: a sub-batch with attention metadata
// and a context of its own, like a microbatch. Later layers run on these rows too.
struct KeptRows {
  at::Tensor rows;  // [kept] int64 rows of what the layer received, ascending; undefined = all of them
  std::shared_ptr<ForwardContext> forward_context;  // null = the context stays as it is
};

// What a model's forward takes.
struct StepInputs {
  at::Tensor token_ids;                 // [rows] int64
  std::vector<at::Tensor> engram_rows;  // per Engram layer [rows, tables] int64: rows of its embedding table
  std::shared_ptr<ForwardContext> forward_context;  // the whole batch's
  std::vector<KeptRows> layers;                     // [num_hidden_layers]
  at::Tensor output_rows;  // [outputs] int64 rows of the last layer's whose final hidden state is wanted
  at::Tensor logits_rows;  // [logits] int64 indices into output_rows whose logits are wanted
};

// What a model's forward returns.
struct StepOutputs {
  at::Tensor hidden_states;  // [outputs, hidden_size] after the final norm
  at::Tensor logits;         // [logits, vocab_size] float32
};

}  // namespace reprise
