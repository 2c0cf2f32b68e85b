#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace reprise {

// `count` kept rows from `kept` on are the consecutive batch rows from `batch` on.
struct RowRun {
  int64_t batch = 0;
  int64_t kept = 0;
  int64_t count = 0;
};

// The batch rows that a step keeps, read once to the host.
class ReplayRows {
 public:
  // Throws std::invalid_argument unless `rows` is a vector of int32 or int64.
  explicit ReplayRows(at::Tensor rows);

  // Throws std::out_of_range unless every row lies in [0, num_rows); `what` names the tensor that has them.
  void check_within(int64_t num_rows, const char* what) const;

  int64_t size() const { return size_; }
  const std::vector<RowRun>& runs() const { return runs_; }
  bool is_one_run() const { return runs_.size() <= 1; }
  // First batch row of a single run.
  int64_t first() const { return runs_.empty() ? 0 : runs_.front().batch; }
  // Rows strictly ascend, so none repeats and copies to batch rows may run in any order.
  bool ascend() const { return ascend_; }
  // The rows as an index on a device.
  at::Tensor index_on(const at::Device& device) const;

 private:
  at::Tensor rows_;
  int64_t size_ = 0;
  std::vector<RowRun> runs_;
  bool ascend_ = true;
  int64_t lowest_ = 0;
  int64_t highest_ = -1;
};

}  // namespace reprise
