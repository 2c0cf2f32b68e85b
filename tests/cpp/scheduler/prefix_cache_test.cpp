#include "scheduler/prefix_cache.h"

#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <random>
#include <set>

namespace reprise {
namespace {

constexpr uint64_t kSeed = 0x1234567890ABCDEFu;

std::vector<int32_t> block_of(int32_t token, size_t size = 4) { return std::vector<int32_t>(size, token); }

PageRef take(PagePool& pool) {
  std::vector<PageRef> pages;
  EXPECT_TRUE(pool.allocate(1, pages));
  return std::move(pages.front());
}

TEST(BlockHash, DependsOnTokensTheirOrderTheirParentAndTheSalt) {
  const std::vector<std::vector<int32_t>> blocks = {{1, 2, 3, 4}, {2, 1, 3, 4}, {1, 2, 4, 3}, {1, 2, 3},
                                                    {1, 2, 3, 0}, {3, 4, 1, 2}, {-1, 2, 3, 4}};
  std::set<std::pair<uint64_t, uint64_t>> seen;
  size_t count = 0;
  for (uint64_t salt : {0, 1, 2}) {
    for (const auto& parent : blocks) {
      for (const auto& block : blocks) {
        const BlockHash hash = hash_block(hash_block(root_hash(kSeed, salt), parent), block);
        EXPECT_EQ(hash, hash_block(hash_block(root_hash(kSeed, salt), parent), block));
        seen.insert({hash.low, hash.high});
        ++count;
      }
    }
  }
  // {1, 2, 3} and {1, 2, 3, 0} differ in length only; blocks of one cache never do, so they may agree.
  EXPECT_GE(seen.size(), count * 6 * 6 / (7 * 7));
}

// Prompts that collide under one seed say nothing about another: every bit of the seed reaches both halves of every
// hash.
TEST(BlockHash, EveryBitOfTheSeedChangesBothHalves) {
  for (const auto& block : {block_of(0), block_of(1), block_of(-1)}) {
    std::set<uint64_t> halves;
    const auto add = [&](uint64_t seed) {
      const BlockHash hash = hash_block(root_hash(seed, 0), block);
      halves.insert({hash.low, hash.high});
    };
    add(kSeed);
    for (int bit = 0; bit < 64; ++bit) add(kSeed ^ uint64_t{1} << bit);
    EXPECT_EQ(halves.size(), 65u * 2);
  }
}

TEST(PrefixCache, FindsWhatWasInsertedUntilThePoolTakesThePage) {
  PagePool pool(3);
  PrefixCache cache(pool, 4);
  const BlockHash first = hash_block(root_hash(kSeed, 0), block_of(1));
  const BlockHash second = hash_block(first, block_of(2));
  PageRef a = take(pool);
  PageRef b = take(pool);
  const int32_t page_a = a.page();
  cache.insert(first, block_of(1), page_a);
  cache.insert(second, block_of(2), b.page());
  EXPECT_EQ(cache.find(first, block_of(1)), page_a);
  EXPECT_EQ(cache.find(second, block_of(2)), b.page());
  EXPECT_EQ(cache.find(first, block_of(7)), kPadPage) << "the same hash with other tokens is not the block";
  EXPECT_EQ(cache.find(hash_block(root_hash(kSeed, 0), block_of(2)), block_of(2)), kPadPage) << "the parent counts";
  cache.check_integrity();

  b.reset();
  a.reset();
  EXPECT_EQ(cache.find(first, block_of(1)), page_a) << "nobody uses it, but it is still there";
  take(pool);  // the least recently used: b
  EXPECT_EQ(cache.find(second, block_of(2)), kPadPage);
  EXPECT_EQ(cache.find(first, block_of(1)), page_a);
  cache.check_integrity();
}

TEST(PrefixCache, ASecondCopyOfABlockIsNotIndexed) {
  PagePool pool(4);
  PrefixCache cache(pool, 4);
  const BlockHash hash = hash_block(root_hash(kSeed, 0), block_of(1));
  PageRef a = take(pool);
  PageRef b = take(pool);
  cache.insert(hash, block_of(1), a.page());
  cache.insert(hash, block_of(1), b.page());
  EXPECT_EQ(cache.num_blocks(), 1);
  EXPECT_FALSE(pool.is_cached(b.page()));
  EXPECT_EQ(cache.find(hash, block_of(1)), a.page());
  cache.check_integrity();
}

TEST(PrefixCache, AgreesWithAMapUnderRandomUse) {
  const uint64_t seed = std::random_device{}();
  std::cout << "seed " << seed << std::endl;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  PagePool pool(17);
  PrefixCache cache(pool, 4);
  std::map<int32_t, int32_t> page_of;  // token of a block -> page
  std::vector<PageRef> held;
  for (int step = 0; step < 5000; ++step) {
    const auto token = static_cast<int32_t>(random() % 40);
    const BlockHash hash = hash_block(root_hash(kSeed, 0), block_of(token));
    const auto known = page_of.find(token);
    ASSERT_EQ(cache.find(hash, block_of(token)), known == page_of.end() ? kPadPage : known->second);
    if (known != page_of.end()) {
      held.push_back(pool.reference(known->second));
    } else if (pool.num_free() > 0) {
      PageRef page = take(pool);
      std::erase_if(page_of, [&](const auto& entry) { return entry.second == page.page(); });
      cache.insert(hash, block_of(token), page.page());
      page_of[token] = page.page();
      held.push_back(std::move(page));
    }
    while (!held.empty() && random() % 2 == 0) {
      std::swap(held[random() % held.size()], held.back());
      held.pop_back();
    }
    if (step % 50 == 0) cache.check_integrity();
    if (step % 50 == 0) pool.check_integrity();
  }
}

}  // namespace
}  // namespace reprise
