#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace reprise {

// A contiguous CPU tensor over memory that the caller has made; otherwise like any other tensor (also resizable).
at::Tensor tensor_over(at::DataPtr memory, at::IntArrayRef sizes, const at::TensorOptions& options);

// A zero tensor. A large one on the CPU is a fresh anonymous mapping: zero by allocation, and a page costs nothing
// until it is written.
at::Tensor lazy_zeros(at::IntArrayRef sizes, const at::TensorOptions& options);

// Says that a range of lazy zeros is about to be written: its pages come in one call, large ones where they fit inside,
// instead of a fault each. Changes no value; safe on any memory.
void populate_pages(void* begin, size_t bytes);

// Memory for a call's gathered inputs, kept from call to call so that its pages stay mapped and warm. One block per
// input; a block that anyone still refers to (a tensor, a view, a NumPy array) is left to them and replaced.
// Thread-safe.
class WarmBuffers {
 public:
  // An uninitialised contiguous CPU tensor that shares memory with no live tensor.
  at::Tensor take(size_t input, at::IntArrayRef sizes, const at::TensorOptions& options);

 private:
  struct Block {
    at::DataPtr memory;
    size_t capacity = 0;  // bytes
  };
  std::shared_ptr<Block> unshared_block(size_t input, size_t bytes);

  std::mutex mutex_;
  std::vector<std::shared_ptr<Block>> blocks_;
};

}  // namespace reprise
