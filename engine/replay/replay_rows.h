#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "reprise/row_runs.h"

namespace reprise {

// The batch rows that a caller of DecoderReplayLayers keeps: a tensor, read once to the host.
class ReplayRows {
 public:
  // Throws std::invalid_argument unless `rows` is a vector of int32 or int64.
  explicit ReplayRows(at::Tensor rows);

  // Throws std::out_of_range unless every row lies in [0, num_rows); `what` names the tensor that has them.
  void check_within(int64_t num_rows, const char* what) const;

  int64_t size() const { return runs_.num_rows(); }
  // In any order; a row may repeat.
  const RowRuns& runs() const { return runs_; }
  // Rows strictly ascend, so none repeats and copies to batch rows may run in any order.
  bool ascend() const { return ascend_; }
  // The rows as an index on a device.
  at::Tensor index_on(const at::Device& device) const;

 private:
  at::Tensor rows_;
  RowRuns runs_;
  bool ascend_ = true;
  int64_t lowest_ = 0;
  int64_t highest_ = -1;
};

}  // namespace reprise
