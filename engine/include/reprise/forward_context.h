#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace reprise {

// Cosines and sines of the rotary embedding, one row per row of the batch. [rows, R/2] float32 each.
struct RopeRows {
  at::Tensor cos;
  at::Tensor sin;
};

// What rows know of one cache group (ModelFacts::groups).
struct GroupRows {
  at::Tensor block_table;    // [max_num_seqs, entries] int32: position p lies in entry p / page_size
  at::Tensor window_starts;  // [rows] int64: first position that attention may read; undefined without a window
};

// Where rows write KV (ModelFacts::cells).
struct CellRows {
  at::Tensor slots;  // [rows] int64: cell of the group (page * page_size / ratio + offset); the pad cell 0 where a row
                     // completes no group of `ratio` tokens or must not write. Undefined where no layer writes any more
  RopeRows rope;     // at the position of the group's first token; undefined where the cells have none of their own
};

// What attention and the caches know of a set of rows. A sequence's rows are contiguous, in position order, and run to
// the end of its share of the step.
struct AttentionMetadata {
  at::Tensor positions;           // [rows] int64
  at::Tensor sequence_index;      // [rows] int32: which of the step's sequences; -1 = a padding row
  at::Tensor sequence_starts;     // [sequences + 1] int64: sequence i owns rows [starts[i], starts[i+1])
  at::Tensor state_slots;         // [sequences] int32: row of the block tables, cell of the partial state
  std::vector<GroupRows> groups;  // per cache group
  std::vector<CellRows> cells;    // per entry of ModelFacts::cells
  std::vector<RopeRows> ropes;    // per rotary embedding (ModelFacts::ropes), at the row's position
};

// What the layers of one forward read about the rows they run on. Virtual so that a front end may carry more.
class ForwardContext {
 public:
  ForwardContext() = default;
  virtual ~ForwardContext() = default;
  ForwardContext(const ForwardContext&) = delete;
  ForwardContext& operator=(const ForwardContext&) = delete;

  AttentionMetadata attention;
  int64_t num_rows = 0;          // rows of the batch, padding included
  int64_t num_padding_rows = 0;  // at the end; they write to pad slots and nothing reads their outputs
  bool is_replay = false;        // the rows are a replay batch (kept rows), not the whole step
};

// The context on top of this thread's stack. Throws std::logic_error when there is none or it is hidden.
ForwardContext& get_forward_context();
// The same as a shared pointer; null when there is none or it is hidden.
std::shared_ptr<ForwardContext> current_forward_context();
bool is_forward_context_available();

// Makes a context current on this thread for the lifetime of the scope; null hides the outer one. What was current
// before is current again afterwards, also when an exception leaves the scope. Scopes nest: each keeps what it covered,
// so together they are the thread's stack of contexts. A scope ends on the thread that made it.
class ScopedForwardContext {
 public:
  explicit ScopedForwardContext(std::shared_ptr<ForwardContext> context);
  ~ScopedForwardContext();
  ScopedForwardContext(const ScopedForwardContext&) = delete;
  ScopedForwardContext& operator=(const ScopedForwardContext&) = delete;

 private:
  std::shared_ptr<ForwardContext> covered_;
};

}  // namespace reprise
