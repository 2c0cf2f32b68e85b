#include "replay/replay_rows.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "reprise/error.h"

namespace reprise {
namespace {

// Rows may be any integer here; they are checked later.
template <typename Index>
RowRuns find_runs(const Index* rows, int64_t size) {
  RowRuns runs;
  for (int64_t i = 0; i < size; ++i) runs.append(rows[i], 1);
  return runs;
}

}  // namespace

ReplayRows::ReplayRows(at::Tensor rows) : rows_(std::move(rows)) {
  const at::ScalarType dtype = rows_.scalar_type();
  REPRISE_REQUIRE(rows_.dim() == 1 && (dtype == at::kInt || dtype == at::kLong),
                  "[DecoderReplayLayers] wanted rows to be a vector of int32 or int64 but got ", dtype, " of shape ",
                  rows_.sizes(), "; pass row numbers, not a mask");
  const at::Tensor host = rows_.cpu().contiguous();
  runs_ = dtype == at::kInt ? find_runs(host.const_data_ptr<int32_t>(), rows_.size(0))
                            : find_runs(host.const_data_ptr<int64_t>(), rows_.size(0));
  if (runs_.num_rows() == 0) return;
  lowest_ = runs_.first();
  for (const RowRun& run : runs_.runs()) {
    ascend_ = ascend_ && run.from > highest_;
    lowest_ = std::min(lowest_, run.from);
    highest_ = std::max(highest_, run.from + (run.count - 1));
  }
}

void ReplayRows::check_within(int64_t num_rows, const char* what) const {
  if (lowest_ >= 0 && highest_ < num_rows) return;
  throw std::out_of_range(concat("[DecoderReplayLayers] wanted rows in [0, ", num_rows, "), the rows of ", what,
                                 ", but got ", lowest_ < 0 ? lowest_ : highest_));
}

at::Tensor ReplayRows::index_on(const at::Device& device) const { return rows_.to(device); }

}  // namespace reprise
