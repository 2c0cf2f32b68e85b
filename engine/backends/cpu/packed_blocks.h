#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backends/cpu/block_product.h"
#include "backends/linear.h"

namespace reprise::cpu {

// How this room lays out a packed weight: column blocks of kBlock outputs, each [in, width] (bfloat16: rows interleaved
// by pairs), so that a row's result never depends on how many rows a product has.
struct PackedBlocks {
  static constexpr int64_t kBlock = 128;

  int64_t out = 0;
  int64_t in = 0;
  c10::ScalarType dtype{};
  const std::byte* data = nullptr;

  // Weight `index` of a stack.
  explicit PackedBlocks(const PackedWeight& weight, int64_t index = 0);

  int64_t count() const { return (out + kBlock - 1) / kBlock; }
  int64_t width(int64_t block) const { return std::min(kBlock, out - block * kBlock); }

  // c [rows, width(block)] float32 = a [rows, in] times the block, on the calling thread; likewise below.
  void multiply(int64_t block, int64_t rows, const void* a, int64_t lda, float* c, int64_t ldc, ProductPath path) const;
  // c [rows, out] float32 = a [rows, in] W^T
  void multiply(int64_t rows, const void* a, int64_t lda, float* c, int64_t ldc, ProductPath path) const;
};

}  // namespace reprise::cpu
