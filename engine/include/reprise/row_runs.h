#pragma once

#include <cstdint>
#include <vector>

namespace reprise {

// `count` consecutive rows from `from` on, which become the rows from `to` on.
struct RowRun {
  int64_t from = 0;
  int64_t to = 0;
  int64_t count = 0;

  friend bool operator==(const RowRun&, const RowRun&) = default;
};

// Rows chosen from a larger set, as runs that fill [0, num_rows) in order.
class RowRuns {
 public:
  const std::vector<RowRun>& runs() const { return runs_; }
  int64_t num_rows() const { return num_rows_; }
  // A view of the larger set serves where the rows are consecutive.
  bool is_one_run() const { return runs_.size() <= 1; }
  int64_t first() const { return runs_.empty() ? 0 : runs_.front().from; }

  void clear() {
    runs_.clear();
    num_rows_ = 0;
  }
  // The next `count` rows are those from `from` on; they join the last run where they follow it.
  void append(int64_t from, int64_t count) {
    if (count <= 0) return;
    // Compared without overflow: rows that are not checked yet may be any integer.
    if (!runs_.empty() && from > runs_.back().from &&
        static_cast<uint64_t>(from) - static_cast<uint64_t>(runs_.back().from) ==
            static_cast<uint64_t>(runs_.back().count)) {
      runs_.back().count += count;
    } else {
      runs_.push_back({from, num_rows_, count});
    }
    num_rows_ += count;
  }

  friend bool operator==(const RowRuns&, const RowRuns&) = default;

 private:
  std::vector<RowRun> runs_;
  int64_t num_rows_ = 0;
};

}  // namespace reprise
