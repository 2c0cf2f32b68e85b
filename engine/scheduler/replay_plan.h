#pragma once

#include <cstdint>
#include <optional>

#include "reprise/config.h"
#include "reprise/model_facts.h"
#include "reprise/step_plan.h"

namespace reprise {

// The rows that each layer receives and computes for a prompt of `prompt_length` tokens, whatever its chunks. Every
// threshold is at most prompt_length - 1, so generated rows run everywhere. Trims nothing (all zero) under kOff, under
// kStep (which is planned step by step, see below) and when the decoder has no encoder or no replay layers. Throws
// std::invalid_argument for kLastRow when the replay layers own KV: later rows would read what nobody wrote.
RowPlan make_row_plan(ReplayMode mode, int64_t prompt_length, const ModelFacts& facts);

// Policy kStep: the replay layers keep the last min(W, num_rows) of the step's prompt rows [start, start + num_rows). A
// trimmed request reads no window key below its kept rows; an untrimmed one (num_rows <= W) keeps what it had.
RowPlan make_step_row_plan(int64_t start, int64_t num_rows, const ModelFacts& facts);

// The plan after a prefix-cache hit of `hit` tokens (below prompt_length): which rows each layer runs again to rebuild
// the window KV that is not cached. Walks the layers backwards from what must be right: every row >= hit in the encoder
// layers, and the rows that the replay plan keeps (all rows >= hit where nothing is trimmed); a computed row needs the
// W-1 rows before it received, unless the layer's KV is cached with the prefix.
//   kExact    as far as dependencies reach; equal to a cold run.
//   kBounded  no further than hit - W, and no window key below it is read: an approximation.
// The request starts at layers[0].first_received. Empty when that saves nothing: the hit is no longer than its halo
// (bounded: W).
std::optional<RowPlan> make_hit_row_plan(ReplayMode mode, int64_t prompt_length, int64_t hit, PrefixRebuild rebuild,
                                         const ModelFacts& facts);

bool trims_nothing(const RowPlan& plan);

// Rows of [start, start + num_rows) that are >= first.
int64_t count_rows(int64_t first, int64_t start, int64_t num_rows);
// The same for a layer of a plan; a null plan receives and computes every row.
int64_t count_received(const RowPlan* plan, int64_t layer, int64_t start, int64_t num_rows);
int64_t count_computed(const RowPlan* plan, int64_t layer, int64_t start, int64_t num_rows);

}  // namespace reprise
