#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "scheduler/page_pool.h"

namespace reprise {

// One sequence's pages in one cache group: position p lies in entry p / page_size. Entries [first_live, num_entries)
// are held.
class BlockTable {
 public:
  int64_t num_entries() const { return static_cast<int64_t>(entries_.size()); }
  int64_t first_live() const { return first_live_; }
  int64_t num_pages() const { return num_entries() - first_live_; }
  int32_t page(int64_t entry) const { return entries_[static_cast<size_t>(entry)].page(); }

  void reserve(int64_t entries) { entries_.reserve(static_cast<size_t>(entries)); }

  // Starts an empty table at `entry`: nothing below it will be read.
  void start_at(int64_t entry) {
    clear();
    entries_.resize(static_cast<size_t>(entry));
    first_live_ = entry;
  }
  // Appends a page that is held already (a cached one).
  void append(PageRef page) { entries_.push_back(std::move(page)); }
  // Appends fresh pages up to `entries` entries. False, and nothing has changed, when the pool has too few.
  bool grow_to(int64_t entries, PagePool& pool) {
    return entries <= num_entries() || pool.allocate(entries - num_entries(), entries_);
  }
  // Gives back the pages of the entries below `entry`.
  void release_below(int64_t entry) {
    for (; first_live_ < entry && first_live_ < num_entries(); ++first_live_) {
      entries_[static_cast<size_t>(first_live_)].reset();
    }
  }
  // Gives back everything, the last entry first: of a cached chain the end is evicted before what it builds on.
  void clear() {
    while (!entries_.empty()) entries_.pop_back();
    first_live_ = 0;
  }

 private:
  std::vector<PageRef> entries_;
  int64_t first_live_ = 0;
};

}  // namespace reprise
