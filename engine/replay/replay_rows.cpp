#include "replay/replay_rows.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "reprise/error.h"

namespace reprise {
namespace {

template <typename Index>
std::vector<RowRun> find_runs(const Index* rows, int64_t size) {
  std::vector<RowRun> runs;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t row = rows[i];
    // Rows may be any integer here (they are checked later), so the difference is taken without overflow.
    if (!runs.empty() && row > runs.back().batch &&
        static_cast<uint64_t>(row) - static_cast<uint64_t>(runs.back().batch) ==
            static_cast<uint64_t>(runs.back().count)) {
      ++runs.back().count;
    } else {
      runs.push_back({.batch = row, .kept = i, .count = 1});
    }
  }
  return runs;
}

}  // namespace

ReplayRows::ReplayRows(at::Tensor rows) : rows_(std::move(rows)) {
  const at::ScalarType dtype = rows_.scalar_type();
  REPRISE_REQUIRE(rows_.dim() == 1 && (dtype == at::kInt || dtype == at::kLong),
                  "[DecoderReplayLayers] wanted rows to be a vector of int32 or int64 but got ", dtype, " of shape ",
                  rows_.sizes(), "; pass row numbers, not a mask");
  size_ = rows_.size(0);
  const at::Tensor host = rows_.cpu().contiguous();
  runs_ = dtype == at::kInt ? find_runs(host.const_data_ptr<int32_t>(), size_)
                            : find_runs(host.const_data_ptr<int64_t>(), size_);
  if (runs_.empty()) return;
  lowest_ = runs_.front().batch;
  for (const RowRun& run : runs_) {
    ascend_ = ascend_ && run.batch > highest_;
    lowest_ = std::min(lowest_, run.batch);
    highest_ = std::max(highest_, run.batch + (run.count - 1));
  }
}

void ReplayRows::check_within(int64_t num_rows, const char* what) const {
  if (lowest_ >= 0 && highest_ < num_rows) return;
  throw std::out_of_range(concat("[DecoderReplayLayers] wanted rows in [0, ", num_rows, "), the rows of ", what,
                                 ", but got ", lowest_ < 0 ? lowest_ : highest_));
}

at::Tensor ReplayRows::index_on(const at::Device& device) const { return rows_.to(device); }

}  // namespace reprise
