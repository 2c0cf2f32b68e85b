#pragma once

#include <algorithm>
#include <cstdint>

namespace reprise {

// The pages of one cache group: how token positions map to them and how long a row stays readable.
struct GroupPages {
  int64_t page_size = 0;  // tokens
  int64_t num_pages = 0;  // the pad page included
  int64_t window = 0;     // rows kept behind the next one; 0 = every row stays readable

  int64_t usable_pages() const { return std::max<int64_t>(num_pages - 1, 0); }

  // Block table entries that hold rows [0, rows).
  int64_t entries_for(int64_t rows) const { return (rows + page_size - 1) / page_size; }

  // First entry still needed when `next_row` runs next. The `window` rows behind it stay, so that live rows are never
  // fewer than min(window, length).
  int64_t first_live_entry(int64_t next_row) const {
    return window == 0 ? 0 : std::max<int64_t>(next_row - window, 0) / page_size;
  }

  // Most pages that a request of `total_rows` rows ever holds when it runs at most `chunk_rows` rows a step.
  int64_t max_resident_pages(int64_t total_rows, int64_t chunk_rows) const {
    const int64_t all = entries_for(total_rows);
    if (window == 0) return all;
    const int64_t live_rows = window + chunk_rows;  // at any alignment they touch one page more than they fill
    return std::min(all, (live_rows + page_size - 2) / page_size + 1);
  }
};

// What one group's pool holds now.
struct PageStats {
  int64_t num_pages = 0;     // without the pad page
  int64_t free_pages = 0;    // cached ones that nobody uses included
  int64_t cached_pages = 0;  // in the prefix cache, used or not
  int64_t page_size = 0;     // tokens
};

}  // namespace reprise
