#include "scheduler/prefix_cache.h"

#include <algorithm>
#include <bit>

#include "reprise/error.h"

namespace reprise {

PrefixCache::PrefixCache(PagePool& pool, int64_t page_size) : pool_(pool), page_size_(static_cast<size_t>(page_size)) {
  const auto num_pages = static_cast<size_t>(pool.num_pages());
  index_.assign(std::bit_ceil(2 * num_pages), kPadPage);
  mask_ = index_.size() - 1;
  hashes_.resize(num_pages);
  tokens_.resize(num_pages * page_size_);
  pool_.on_evict([this](int32_t page) { erase(page); });
}

int32_t PrefixCache::find(const BlockHash& hash, std::span<const int32_t> block) const {
  for (size_t i = hash.low & mask_; index_[i] != kPadPage; i = (i + 1) & mask_) {
    const auto page = static_cast<size_t>(index_[i]);
    if (hashes_[page] == hash && std::equal(block.begin(), block.end(), tokens_.begin() + page * page_size_)) {
      return index_[i];
    }
  }
  return kPadPage;
}

void PrefixCache::insert(const BlockHash& hash, std::span<const int32_t> block, int32_t page) {
  REPRISE_ENSURE(block.size() == page_size_, "a block of ", block.size(), " tokens in pages of ", page_size_);
  if (find(hash, block) != kPadPage) return;
  pool_.mark_cached(page);
  hashes_[static_cast<size_t>(page)] = hash;
  std::copy(block.begin(), block.end(), tokens_.begin() + static_cast<size_t>(page) * page_size_);
  size_t i = home(page);
  while (index_[i] != kPadPage) i = (i + 1) & mask_;
  index_[i] = page;
  ++num_blocks_;
  ++version_;
}

void PrefixCache::erase(int32_t page) {
  size_t hole = home(page);
  while (index_[hole] != page) hole = (hole + 1) & mask_;
  // Moves later entries of the run into the hole unless that would put them before their home.
  for (size_t i = (hole + 1) & mask_; index_[i] != kPadPage; i = (i + 1) & mask_) {
    if (((i - home(index_[i])) & mask_) >= ((i - hole) & mask_)) {
      index_[hole] = index_[i];
      hole = i;
    }
  }
  index_[hole] = kPadPage;
  --num_blocks_;
  ++version_;
}

void PrefixCache::check_integrity() const {
  int64_t blocks = 0;
  for (int32_t page : index_) {
    if (page == kPadPage) continue;
    ++blocks;
    REPRISE_ENSURE(pool_.is_cached(page), "page ", page, " is in the prefix index but not cached");
    const std::span block(tokens_.data() + static_cast<size_t>(page) * page_size_, page_size_);
    REPRISE_ENSURE(find(hashes_[static_cast<size_t>(page)], block) == page, "page ", page, " is not found by its hash");
  }
  REPRISE_ENSURE(blocks == num_blocks_ && blocks == pool_.num_cached(), "the prefix index holds ", blocks,
                 " blocks, not ", num_blocks_, "; the pool holds ", pool_.num_cached());
}

}  // namespace reprise
