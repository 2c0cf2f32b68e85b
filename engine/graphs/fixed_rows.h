#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "reprise/forward_context.h"
#include "reprise/row_runs.h"

namespace reprise {

// A zero tensor like `rows` with room for `num_rows` rows.
at::Tensor make_fixed_rows(const at::Tensor& rows, int64_t num_rows);

// Copies `rows` to the first rows of `fixed`; those behind stay as they are. On the CPU it allocates nothing.
void set_first_rows(const at::Tensor& fixed, const at::Tensor& rows);

// The same with the chosen rows of `rows`.
void set_first_rows(const at::Tensor& fixed, const at::Tensor& rows, const RowRuns& chosen);

// Sets `fixed` behind its first `num_rows` rows to `value` (int32 or int64) or, for other types, to zero bits.
void pad_rows(const at::Tensor& fixed, int64_t num_rows, int64_t value = 0);

// A forward context for up to a number of rows and sequences whose tensors keep their addresses.
class FixedContext {
 public:
  // Room for `num_rows` rows of `max_num_seqs` sequences; takes the sizes of everything else, and the block tables,
  // from `like`: what it has no slots for needs none. Holds padding rows only.
  FixedContext(const ForwardContext& like, int64_t num_rows, int64_t max_num_seqs);

  // Takes over a step's rows; the rows behind them become padding: in no sequence, at position 0, written to the pad
  // slot.
  void set(const ForwardContext& step);

  const std::shared_ptr<ForwardContext>& context() const { return context_; }

 private:
  std::shared_ptr<ForwardContext> context_;
};

}  // namespace reprise
