#include "scheduler/page_pool.h"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>

#include "scheduler/block_table.h"
#include "scheduler/cache_group.h"

namespace reprise {
namespace {

TEST(PagePool, HandsOutEveryPageButThePadPageOnce) {
  PagePool pool(5);
  std::vector<PageRef> pages;
  ASSERT_TRUE(pool.allocate(4, pages));
  std::set<int32_t> seen;
  for (const PageRef& page : pages) seen.insert(page.page());
  EXPECT_EQ(seen, (std::set<int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(pool.num_free(), 0);
  pool.check_integrity();
  pages.clear();
  EXPECT_EQ(pool.num_free(), 4);
  pool.check_integrity();
}

TEST(PagePool, AllocatesAllOrNothing) {
  PagePool pool(4);
  std::vector<PageRef> pages;
  ASSERT_TRUE(pool.allocate(2, pages));
  EXPECT_FALSE(pool.allocate(2, pages));
  EXPECT_EQ(pages.size(), 2u);
  EXPECT_EQ(pool.num_free(), 1);
  pool.check_integrity();
}

TEST(PagePool, APageIsFreeWhenItsLastReferenceGoes) {
  PagePool pool(3);
  std::vector<PageRef> pages;
  ASSERT_TRUE(pool.allocate(1, pages));
  PageRef second = pool.reference(pages[0].page());
  EXPECT_EQ(pool.use_count(second.page()), 2);
  pages.clear();
  EXPECT_EQ(pool.num_free(), 1);
  PageRef moved = std::move(second);
  EXPECT_EQ(pool.num_free(), 1);
  moved.reset();
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_THROW(pool.reference(1), std::logic_error) << "a free page that nobody cached has no content to share";
}

TEST(PagePool, CachedPagesAreTakenLastTheLeastRecentlyUsedFirst) {
  PagePool pool(5);
  std::vector<int32_t> evicted;
  pool.on_evict([&](int32_t page) { evicted.push_back(page); });
  std::vector<PageRef> pages;
  ASSERT_TRUE(pool.allocate(4, pages));
  const int32_t first = pages[0].page();
  const int32_t second = pages[1].page();
  pool.mark_cached(first);
  pool.mark_cached(second);
  pages.clear();                  // first, then second, then the two others
  pool.reference(first).reset();  // used again: now second is the least recent
  EXPECT_EQ(pool.num_free(), 4);
  EXPECT_EQ(pool.num_cached(), 2);

  ASSERT_TRUE(pool.allocate(2, pages));
  EXPECT_TRUE(evicted.empty()) << "two pages were free without evicting anything";
  ASSERT_TRUE(pool.allocate(1, pages));
  EXPECT_EQ(evicted, std::vector<int32_t>{second});
  ASSERT_TRUE(pool.allocate(1, pages));
  EXPECT_EQ(evicted, (std::vector<int32_t>{second, first}));
  EXPECT_EQ(pool.num_cached(), 0);
  pool.check_integrity();
}

TEST(BlockTable, GivesBackLeadingEntriesAndGrowsAllOrNothing) {
  PagePool pool(6);
  BlockTable table;
  ASSERT_TRUE(table.grow_to(4, pool));
  table.release_below(2);
  EXPECT_EQ(pool.num_free(), 3);
  EXPECT_EQ(table.page(1), kPadPage);
  EXPECT_NE(table.page(2), kPadPage);
  EXPECT_FALSE(table.grow_to(8, pool));
  EXPECT_EQ(table.num_entries(), 4);
  EXPECT_TRUE(table.grow_to(7, pool));
  EXPECT_EQ(table.num_pages(), 5);
  table.clear();
  EXPECT_EQ(pool.num_free(), 5);
}

TEST(GroupPages, WindowRowsBehindTheNextOneStayLive) {
  const GroupPages w127{64, 100, 127};
  EXPECT_EQ(w127.first_live_entry(1024), 14) << "rows 897..1023 must be live; page 13 ends at 895";
  // Pages larger than the window: page 0 (rows 0..255) goes once the row 256 + 128 runs next.
  const GroupPages big{256, 100, 128};
  for (int64_t length : {255, 256, 257, 258, 383}) EXPECT_EQ(big.first_live_entry(length), 0) << length;
  for (int64_t length : {384, 385}) EXPECT_EQ(big.first_live_entry(length), 1) << length;
  // W 128, page 128, row 255 next: the page that holds row 255 - 128 = 127 is live.
  EXPECT_EQ((GroupPages{128, 100, 128}.first_live_entry(255)), 0);
  EXPECT_EQ((GroupPages{128, 100, 128}.first_live_entry(256)), 1);
}

TEST(GroupPages, ResidentPagesOfAMovingWindow) {
  const GroupPages facts{16, 100, 32};
  EXPECT_EQ(facts.max_resident_pages(1000, 1), 3) << "33 rows that start inside a page touch at most 3";
  EXPECT_EQ(facts.max_resident_pages(20, 1), 2) << "no more than the request has";
  EXPECT_EQ((GroupPages{16, 100, 0}.max_resident_pages(1000, 1)), 63);
}

}  // namespace
}  // namespace reprise
