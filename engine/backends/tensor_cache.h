#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

namespace reprise {

// Keeps the memory of big CPU tensors for the next ones. The kernel zeroes each fresh page (3-5 GB/s), which costs a
// prefill step more than a tenth of its time when every layer's results come from fresh memory. Holds no more than was
// in use at once.
class TensorCache {
 public:
  TensorCache();
  ~TensorCache();
  TensorCache(const TensorCache&) = delete;
  TensorCache& operator=(const TensorCache&) = delete;

  // Bytes held, in use or not.
  size_t bytes() const;

 private:
  friend class TensorCacheScope;
  friend at::Tensor empty_tensor(at::IntArrayRef sizes, const at::TensorOptions& options);
  class Pool;
  std::shared_ptr<Pool> pool_;  // outlives the cache while tensors of it are alive
};

// empty_tensor on this thread takes from the cache for the lifetime of the scope.
class TensorCacheScope {
 public:
  explicit TensorCacheScope(TensorCache& cache);
  ~TensorCacheScope();
  TensorCacheScope(const TensorCacheScope&) = delete;
  TensorCacheScope& operator=(const TensorCacheScope&) = delete;

 private:
  TensorCache* outer_;
};

// A dense tensor of arbitrary contents: at::empty, from this thread's cache where it is big and one is in scope.
at::Tensor empty_tensor(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace reprise
