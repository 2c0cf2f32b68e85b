#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/block_hash.h"
#include "scheduler/page_pool.h"

namespace reprise {

// Which pages of a pool hold which complete blocks of tokens. Pages stay known until the pool hands them out for
// something else; memory is fixed at construction. A block is found by its chained hash and its own tokens are
// compared, so that a wrong page would take a 128-bit collision further up the chain.
class PrefixCache {
 public:
  PrefixCache(PagePool& pool, int64_t page_size);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // The page of a block, kPadPage when it is not cached.
  int32_t find(const BlockHash& hash, std::span<const int32_t> block) const;
  // Remembers that `page`, which is in use, holds the block for good. Does nothing when the block is known already.
  void insert(const BlockHash& hash, std::span<const int32_t> block, int32_t page);
  int64_t num_blocks() const { return num_blocks_; }
  // Another number whenever what find() gives may have changed.
  uint64_t version() const { return version_; }

  // Throws std::logic_error when the index and the pool disagree.
  void check_integrity() const;

 private:
  size_t home(int32_t page) const { return hashes_[static_cast<size_t>(page)].low & mask_; }
  void erase(int32_t page);

  PagePool& pool_;
  size_t page_size_;
  size_t mask_;
  std::vector<int32_t> index_;     // open addressing with linear probing, [power of two >= 2 * pages]; kPadPage = empty
  std::vector<BlockHash> hashes_;  // [pages]
  std::vector<int32_t> tokens_;    // [pages, page_size]
  int64_t num_blocks_ = 0;
  uint64_t version_ = 1;
};

}  // namespace reprise
