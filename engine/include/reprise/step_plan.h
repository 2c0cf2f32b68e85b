#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "reprise/request.h"

namespace reprise {

// Which rows of one request a layer takes part in. Positions are absolute token positions.
struct LayerRows {
  int64_t first_received = 0;  // rows >= it enter the layer: their window KV is written
  int64_t first_computed = 0;  // rows >= it get an output (attention, MoE); >= first_received
  int64_t window_floor = 0;    // window attention reads no key below it

  friend bool operator==(const LayerRows&, const LayerRows&) = default;
};

// One request's rows per layer. Invariant: layer l+1 receives exactly what layer l computed.
struct RowPlan {
  std::vector<LayerRows> layers;  // [num_hidden_layers]
};

// Each cache group (ModelFacts::groups) has a page pool and a block table of its own. Page 0 of each is the pad page,
// which nothing reads.
inline constexpr int32_t kPadPage = 0;

// One request's share of a step: rows [start, start + num_rows) of its tokens.
struct ScheduledSequence {
  RequestId id = 0;
  int32_t state_slot = 0;  // row of the block tables and cell of the compressor's partial state, < max_num_seqs
  std::span<const int32_t> tokens;  // all of the request's tokens so far, prompt first; valid until commit
  int64_t prompt_length = 0;
  int64_t start = 0;
  int32_t num_rows = 0;
  int64_t publish_from = 0;      // rows below it write published KV (compressed KV, index keys) to the pad slot
  int32_t first_logits_row = 0;  // chunk rows >= it have their logits read; num_rows = none
  bool samples = false;          // the last row's logits choose the next token
  std::shared_ptr<const RowPlan> row_plan;  // null: every layer receives and computes every row
};

// Entry `index` of a block table row becomes `page`: position p lies in entry p / page_size.
struct BlockTableUpdate {
  int32_t group = 0;  // index into ModelFacts::groups
  int32_t state_slot = 0;
  int32_t index = 0;
  int32_t page = kPadPage;
};

// What one step runs. Made by the scheduler; plain data, no tensors.
struct StepPlan {
  std::vector<ScheduledSequence> sequences;           // rows of the batch in this order
  std::vector<BlockTableUpdate> block_table_updates;  // to apply before the step, in order
  int32_t num_rows = 0;                               // sum over sequences
};

}  // namespace reprise
