#pragma once

#include <cstdint>

#include "context/kv_cache.h"
#include "models/model.h"
#include "reprise/step_inputs.h"

namespace reprise {

// A range of half-layers, in the order in which they run: receive 0, compute 0, receive 1, ...
struct Halves {
  int64_t first = 0;
  int64_t last = 0;  // behind the range
};
inline int64_t receive_half(int64_t layer) { return 2 * layer; }
inline int64_t compute_half(int64_t layer) { return 2 * layer + 1; }

// Runs a range of half-layers on `rows`, which belong to the set that enters its first layer. Between the halves of a
// layer the rows narrow, the row buffers are compacted and the context changes, as the step's sets say. Once no row is
// left, nothing runs any more.
void walk(Model& model, Halves halves, const StepInputs& inputs, KvCache& cache, Rows& rows);

// The same for the change of rows alone that stands before `layer` computes: a graph takes over from there.
void walk_to_compute(Model& model, int64_t layer, const StepInputs& inputs, Rows& rows);

// Final norm and head of the wanted rows, from the last layer's.
StepOutputs finish(Model& model, const StepInputs& inputs, const Rows& rows);

}  // namespace reprise
