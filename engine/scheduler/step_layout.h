#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reprise/model_facts.h"
#include "reprise/row_runs.h"
#include "reprise/step_plan.h"
#include "scheduler/block_tables.h"

namespace reprise {

// Rows that take part together from some layer on: each sequence's last rows, in the order of the batch.
struct RowSetLayout {
  RowRuns kept;                          // of the set before; the first set's own rows are the batch
  std::vector<int64_t> positions;        // [rows]
  std::vector<int32_t> sequence_index;   // [rows]
  std::vector<int64_t> sequence_starts;  // [sequences + 1]
  // Per cache group [rows]: first position that attention over it may read; empty in a group without a window.
  std::vector<std::vector<int64_t>> window_starts;
  // Per entry of ModelFacts::cells: whether a layer that receives the rows writes there, and if so [rows] the cell that
  // the row writes, 0 (the pad cell) where it must not.
  std::vector<bool> writes;
  std::vector<std::vector<int64_t>> slots;
  bool is_replay = false;  // only replay layers receive them

  int64_t num_rows() const { return static_cast<int64_t>(positions.size()); }
};

// A step as integers: the plan's rows, where each reads and writes, and which of them each layer runs.
struct StepLayout {
  std::vector<int64_t> token_ids;     // [rows]
  std::vector<int32_t> state_slots;   // [sequences]
  size_t num_sets = 0;                // of `sets` that this step uses; the others keep their memory for a later one
  std::vector<RowSetLayout> sets;     // the first is the batch
  std::vector<int32_t> set_of_layer;  // [num_layers] the set that the layer computes; it receives its predecessor's
  RowRuns output_rows;                // of the last layer's set: rows whose final hidden state is read
  RowRuns logits_rows;                // of the output rows
};

// Lays a step out. `tables` hold the plan's block table updates; `hidden_rows`, one flag per sequence or empty: hidden
// states of all its rows are read. Memory of an earlier layout serves again.
void lay_out(const StepPlan& plan, const ModelFacts& model, const BlockTables& tables, int64_t page_size,
             const std::vector<bool>& hidden_rows, StepLayout& layout);

}  // namespace reprise
