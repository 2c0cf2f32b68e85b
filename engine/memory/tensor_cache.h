#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

#include "memory/tensor_source.h"

namespace reprise {

// Keeps the memory of big CPU tensors for the next ones. The kernel zeroes each fresh page (3-5 GB/s), which costs a
// prefill step more than a tenth of its time when every layer's results come from fresh memory. Holds no more than was
// in use at once, and nothing for tensors to come once it is gone itself. Memory that anyone still refers to (a
// tensor, a view, a NumPy array) is theirs until they let go. Thread-safe.
class TensorCache final : public TensorSource {
 public:
  TensorCache();
  ~TensorCache() override;
  TensorCache(const TensorCache&) = delete;
  TensorCache& operator=(const TensorCache&) = delete;

  // From the cache where it is big and on the CPU, where other devices have caches of their own.
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) override;

  // Bytes held, in use or not.
  size_t bytes() const;

 private:
  class Pool;
  std::shared_ptr<Pool> pool_;  // outlives the cache while tensors of it are alive
};

}  // namespace reprise
