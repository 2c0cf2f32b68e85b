#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "backends/cpu/block_product.h"

namespace reprise {

// A linear layer's weight [out_features, in_features], stored for products on its device. On the CPU: column blocks of
// kBlock outputs, each [in_features, kBlock] (bfloat16: rows interleaved by pairs), so that a row's result never
// depends on how many rows a product has.
class PackedWeight {
 public:
  static constexpr int64_t kBlock = 128;

  PackedWeight() = default;
  // `weight`: [out, in] float32 or bfloat16, contiguous; bfloat16 wants an even `in`.
  explicit PackedWeight(const at::Tensor& weight);

  int64_t out_features() const { return out_; }
  int64_t in_features() const { return in_; }
  at::ScalarType dtype() const { return packed_.scalar_type(); }
  bool defined() const { return packed_.defined(); }
  int64_t num_blocks() const { return (out_ + kBlock - 1) / kBlock; }
  int64_t block_width(int64_t block) const { return block + 1 < num_blocks() ? kBlock : out_ - block * kBlock; }
  // Block `block` as [in_features, block_width(block)].
  const void* block_data(int64_t block) const;

 private:
  int64_t out_ = 0;
  int64_t in_ = 0;
  at::Tensor packed_;  // [out * in]
};

// y = x W^T for x [rows, in] (the weight's dtype, last dimension dense), as float32 or bfloat16 [rows, out].
at::Tensor linear(const at::Tensor& x, const PackedWeight& weight, at::ScalarType out_dtype);
// Each weight on columns of its own: x [rows, groups * in] with weights of one shape [out, in] -> [rows, groups * out].
at::Tensor grouped_linear(const at::Tensor& x, const std::vector<PackedWeight>& weights, at::ScalarType out_dtype);

namespace cpu {

// c [rows, out] float32 = a [rows, in] W^T on the calling thread, for use inside parallel kernels.
void packed_product(const PackedWeight& weight, int64_t rows, const void* a, int64_t lda, float* c, int64_t ldc,
                    ProductPath path);

}  // namespace cpu

}  // namespace reprise
