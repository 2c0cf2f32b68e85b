#include "backends/select_positions.h"

#include "backends/kernels.h"
#include "backends/room.h"
#include "reprise/error.h"

namespace reprise {

void select_compressed(const at::Tensor& q, const at::Tensor& w, const AttentionMetadata& rows,
                       const IndexerParams& params, const Selection& selection) {
  const auto has_row_for_each = [&](const at::Tensor& x) { return x.is_contiguous() && x.size(0) >= q.size(0); };
  REPRISE_ENSURE(q.is_contiguous() && w.is_contiguous() && has_row_for_each(selection.positions),
                 "a dense row of selection for every query row");
  for (const at::Tensor* candidates : {&params.candidates_in, &selection.candidates}) {
    REPRISE_ENSURE(!candidates->defined() || has_row_for_each(*candidates),
                   "a dense row of candidates for every query row");
  }
  room_of(q).select_compressed(q, w, rows, params, selection);
}

}  // namespace reprise
