#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "reprise/step_plan.h"

namespace reprise {

class PagePool;

// Owns one reference to a page; the page is free again when its last reference is gone.
class PageRef {
 public:
  PageRef() = default;
  PageRef(PageRef&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), page_(std::exchange(other.page_, kPadPage)) {}
  PageRef& operator=(PageRef&& other) noexcept {
    PageRef moved(std::move(other));
    std::swap(pool_, moved.pool_);
    std::swap(page_, moved.page_);
    return *this;
  }
  PageRef(const PageRef&) = delete;
  PageRef& operator=(const PageRef&) = delete;
  ~PageRef() { reset(); }

  void reset();
  int32_t page() const { return page_; }  // kPadPage when empty
  explicit operator bool() const { return pool_ != nullptr; }

 private:
  friend class PagePool;
  PageRef(PagePool* pool, int32_t page) : pool_(pool), page_(page) {}

  PagePool* pool_ = nullptr;
  int32_t page_ = kPadPage;
};

// The pages of one cache group with their reference counts. Page 0 is the pad page and is never handed out.
//
// Free pages stand in a queue. Pages that the prefix cache knows join its back when their last reference goes, all
// others its front: what is cached is taken last, the least recently used first.
class PagePool {
 public:
  explicit PagePool(int64_t num_pages);  // the pad page included
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  int64_t num_pages() const { return static_cast<int64_t>(counts_.size()); }
  int64_t num_free() const { return num_free_; }
  int64_t num_cached() const { return num_cached_; }
  int32_t use_count(int32_t page) const { return counts_[page]; }
  bool is_cached(int32_t page) const { return cached_[page] != 0; }

  // Appends `count` fresh pages. All or nothing: false, and nothing has changed, when fewer are free.
  bool allocate(int64_t count, std::vector<PageRef>& pages);
  // One more reference to a page that is in use or cached.
  PageRef reference(int32_t page);

  // Marks a page in use as known to the prefix cache. `on_evict` is told when a cached page is handed out for something
  // else.
  void mark_cached(int32_t page);
  void on_evict(std::function<void(int32_t page)> callback) { on_evict_ = std::move(callback); }

  // Throws std::logic_error when counts and the free queue disagree.
  void check_integrity() const;

 private:
  friend class PageRef;
  void release(int32_t page);
  void link(int32_t before, int32_t page);
  void unlink(int32_t page);

  std::vector<int32_t> counts_;
  std::vector<uint8_t> cached_;
  std::vector<int32_t> next_;  // the free queue; the pad page is its end on both sides
  std::vector<int32_t> prev_;
  int64_t num_free_ = 0;
  int64_t num_cached_ = 0;
  std::function<void(int32_t)> on_evict_;
};

inline void PageRef::reset() {
  if (pool_ != nullptr) std::exchange(pool_, nullptr)->release(std::exchange(page_, kPadPage));
}

}  // namespace reprise
