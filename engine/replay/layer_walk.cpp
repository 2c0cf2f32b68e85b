#include "replay/layer_walk.h"

#include <optional>

#include "replay/narrow_rows.h"

namespace reprise {

namespace {

// The change from one set of rows to that of `layer`, where they differ.
void enter_set_of(Model& model, int64_t layer, const StepInputs& inputs, Rows& rows, int32_t& set,
                  std::optional<ScopedForwardContext>& scope) {
  const int32_t next = inputs.set_of_layer[static_cast<size_t>(layer)];
  if (next == set) return;
  const RowSet& to = inputs.sets[static_cast<size_t>(next)];
  narrow_rows(rows, {.runs = to.kept}, model.row_buffers(layer), to.forward_context, scope);
  set = next;
}

}  // namespace

void walk(Model& model, Halves halves, const StepInputs& inputs, KvCache& cache, Rows& rows) {
  int32_t set = inputs.received_set(halves.first / 2);
  std::optional<ScopedForwardContext> scope(inputs.sets[static_cast<size_t>(set)].forward_context);
  for (int64_t half = halves.first; half < halves.last; ++half) {
    const int64_t layer = half / 2;
    if (half == receive_half(layer)) {
      model.receive(layer, rows, cache);
      continue;
    }
    enter_set_of(model, layer, inputs, rows, set, scope);
    if (rows[0].size(0) == 0) return;
    model.compute(layer, rows, cache);
  }
}

void walk_to_compute(Model& model, int64_t layer, const StepInputs& inputs, Rows& rows) {
  int32_t set = inputs.received_set(layer);
  std::optional<ScopedForwardContext> scope;
  enter_set_of(model, layer, inputs, rows, set, scope);
}

StepOutputs finish(Model& model, const StepInputs& inputs, const Rows& rows) {
  StepOutputs outputs;
  if (inputs.output_rows.num_rows() == 0) return outputs;
  Rows wanted;
  for (const at::Tensor& state : rows) wanted.push_back(keep_rows(state, {.runs = inputs.output_rows}));
  outputs.hidden_states = model.finish(wanted);
  if (inputs.logits_rows.num_rows() == 0) return outputs;
  outputs.logits = model.logits(keep_rows(outputs.hidden_states, {.runs = inputs.logits_rows}));
  return outputs;
}

}  // namespace reprise
