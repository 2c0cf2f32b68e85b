#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reprise/step_plan.h"

namespace reprise {

// Where each request's tokens lie: per cache group a table [max_num_seqs, entries] of pages, kPadPage where it has
// none. The memory of a table stays where it is.
class BlockTables {
 public:
  BlockTables(size_t num_groups, int64_t max_num_seqs, int64_t entries)
      : max_num_seqs_(max_num_seqs),
        entries_(entries),
        tables_(num_groups, std::vector<int32_t>(static_cast<size_t>(max_num_seqs * entries), kPadPage)) {}

  size_t num_groups() const { return tables_.size(); }
  int64_t max_num_seqs() const { return max_num_seqs_; }
  int64_t entries() const { return entries_; }
  std::span<int32_t> table(size_t group) { return tables_[group]; }
  // The pages of one request: position p lies in entry p / page_size.
  const int32_t* pages(int32_t group, int32_t state_slot) const {
    return tables_[static_cast<size_t>(group)].data() + state_slot * entries_;
  }

  void apply(std::span<const BlockTableUpdate> updates) {
    for (const auto& update : updates) {
      tables_[static_cast<size_t>(update.group)][static_cast<size_t>(update.state_slot * entries_ + update.index)] =
          update.page;
    }
  }

 private:
  int64_t max_num_seqs_;
  int64_t entries_;
  std::vector<std::vector<int32_t>> tables_;
};

}  // namespace reprise
