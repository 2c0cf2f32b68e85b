#include "memory/tensor_cache.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "memory/cpu_storage.h"

namespace reprise {

namespace {

// Smaller ones come from malloc's own lists without fresh pages.
constexpr size_t kSmallestCached = size_t{64} << 10;
constexpr size_t kGranule = size_t{64} << 10;

}  // namespace

class TensorCache::Pool : public std::enable_shared_from_this<Pool> {
 public:
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options, size_t size) {
    std::shared_ptr<Block> block = take((size + kGranule - 1) / kGranule * kGranule);
    void* data = block->memory.get();
    at::DataPtr memory = c10::InefficientStdFunctionContext::makeDataPtr(
        data, [pool = shared_from_this(), block = std::move(block)](void*) { pool->give_back(block); }, at::kCPU);
    return tensor_over(std::move(memory), sizes, options);
  }

  size_t bytes() const {
    const std::lock_guard lock(mutex_);
    return held_;
  }

  // Tensors that are still alive keep the pool, but only their own memory with it.
  void close() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    free_.clear();
  }

 private:
  struct Block {
    size_t size;
    c10::DataPtr memory;
  };

  std::shared_ptr<Block> take(size_t size) {
    {
      const std::lock_guard lock(mutex_);
      // The smallest that fits, unless it is more than half empty.
      const auto found = free_.lower_bound(size);
      if (found != free_.end() && found->first <= 2 * size) {
        auto block = std::move(found->second);
        free_.erase(found);
        in_use_ += block->size;
        most_in_use_ = std::max(most_in_use_, in_use_);
        return block;
      }
      in_use_ += size;
      most_in_use_ = std::max(most_in_use_, in_use_);
      // Blocks that serve no size any more make room, the smallest first.
      while (!free_.empty() && held_ + size > most_in_use_) {
        held_ -= free_.begin()->first;
        free_.erase(free_.begin());
      }
      held_ += size;
    }
    auto block = std::make_shared<Block>(Block{size, c10::GetCPUAllocator()->allocate(size)});
    advise_huge_pages(block->memory.get(), size);
    return block;
  }

  void give_back(const std::shared_ptr<Block>& block) {
    const std::lock_guard lock(mutex_);
    in_use_ -= block->size;
    if (!is_closed_) free_.emplace(block->size, block);
  }

  mutable std::mutex mutex_;
  std::multimap<size_t, std::shared_ptr<Block>> free_;
  size_t held_ = 0;         // bytes of all blocks
  size_t in_use_ = 0;       // of those given out
  size_t most_in_use_ = 0;  // at any time
  bool is_closed_ = false;
};

TensorCache::TensorCache() : pool_(std::make_shared<Pool>()) {}
TensorCache::~TensorCache() { pool_->close(); }
size_t TensorCache::bytes() const { return pool_->bytes(); }

at::Tensor TensorCache::empty(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const auto size = static_cast<size_t>(c10::multiply_integers(sizes)) * options.dtype().itemsize();
  const bool is_cached = options.device().is_cpu() && size >= kSmallestCached;
  return is_cached ? pool_->empty(sizes, options, size) : at::empty(sizes, options);
}

}  // namespace reprise
