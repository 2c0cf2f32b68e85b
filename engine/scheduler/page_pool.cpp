#include "scheduler/page_pool.h"

#include <algorithm>
#include <limits>

#include "reprise/error.h"

namespace reprise {

PagePool::PagePool(int64_t num_pages) {
  REPRISE_REQUIRE(num_pages >= 1 && num_pages <= std::numeric_limits<int32_t>::max(),
                  "[page_pool] wanted 1 to 2^31 - 1 pages, the pad page included, but got ", num_pages);
  const auto size = static_cast<size_t>(num_pages);
  counts_.assign(size, 0);
  cached_.assign(size, 0);
  next_.assign(size, kPadPage);
  prev_.assign(size, kPadPage);
  for (int32_t page = 1; page < static_cast<int32_t>(num_pages); ++page) link(kPadPage, page);
}

bool PagePool::allocate(int64_t count, std::vector<PageRef>& pages) {
  if (count > num_free_) return false;
  const size_t wanted = pages.size() + static_cast<size_t>(count);
  if (pages.capacity() < wanted) pages.reserve(std::max(wanted, 2 * pages.capacity()));
  for (int64_t i = 0; i < count; ++i) {
    const int32_t page = next_[kPadPage];
    unlink(page);
    if (cached_[page]) {
      cached_[page] = 0;
      --num_cached_;
      if (on_evict_) on_evict_(page);
    }
    counts_[page] = 1;
    pages.push_back(PageRef(this, page));
  }
  return true;
}

PageRef PagePool::reference(int32_t page) {
  REPRISE_ENSURE(page > kPadPage && page < num_pages(), "page ", page, " of ", num_pages());
  REPRISE_ENSURE(counts_[page] > 0 || cached_[page], "page ", page, " is neither in use nor cached");
  if (counts_[page]++ == 0) unlink(page);
  return PageRef(this, page);
}

void PagePool::mark_cached(int32_t page) {
  REPRISE_ENSURE(counts_[page] > 0 && !cached_[page], "page ", page, " is not in use or is cached already");
  cached_[page] = 1;
  ++num_cached_;
}

void PagePool::release(int32_t page) {
  if (--counts_[page] > 0) return;
  link(cached_[page] ? kPadPage : next_[kPadPage], page);
}

void PagePool::link(int32_t before, int32_t page) {
  const int32_t after = prev_[before];
  next_[after] = page;
  prev_[page] = after;
  next_[page] = before;
  prev_[before] = page;
  ++num_free_;
}

void PagePool::unlink(int32_t page) {
  next_[prev_[page]] = next_[page];
  prev_[next_[page]] = prev_[page];
  --num_free_;
}

void PagePool::check_integrity() const {
  std::vector<uint8_t> queued(counts_.size(), 0);
  int64_t length = 0;
  for (int32_t page = next_[kPadPage]; page != kPadPage; page = next_[page]) {
    REPRISE_ENSURE(!queued[page], "page ", page, " stands in the free queue twice");
    REPRISE_ENSURE(next_[prev_[page]] == page && prev_[next_[page]] == page, "the free queue is broken at page ", page);
    queued[page] = 1;
    ++length;
  }
  REPRISE_ENSURE(length == num_free_, "the free queue holds ", length, " pages, not ", num_free_);
  REPRISE_ENSURE(counts_[kPadPage] == 0, "the pad page was handed out");
  int64_t cached = 0;
  for (int32_t page = 1; page < num_pages(); ++page) {
    REPRISE_ENSURE((counts_[page] == 0) == (queued[page] != 0), "page ", page, " has ", counts_[page], " references");
    cached += cached_[page];
  }
  REPRISE_ENSURE(cached == num_cached_, cached, " pages are cached, not ", num_cached_);
}

}  // namespace reprise
