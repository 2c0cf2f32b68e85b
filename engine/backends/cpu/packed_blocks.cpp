#include "backends/cpu/packed_blocks.h"

#include <ATen/Parallel.h>

#include "backends/kernels.h"

namespace reprise::cpu {

namespace {

template <typename T>
void pack_block(const T* weight, int64_t in, int64_t width, T* packed) {
  for (int64_t column = 0; column < width; ++column) {
    const T* row = weight + column * in;
    if constexpr (sizeof(T) == 2) {
      for (int64_t i = 0; i < in; ++i) packed[(i / 2 * width + column) * 2 + i % 2] = row[i];
    } else {
      for (int64_t i = 0; i < in; ++i) packed[i * width + column] = row[i];
    }
  }
}

}  // namespace

void pack_weight(const at::Tensor& weight, const at::Tensor& values) {
  constexpr int64_t kBlock = PackedBlocks::kBlock;
  const int64_t out = weight.size(0);
  const int64_t in = weight.size(1);
  at::parallel_for(0, (out + kBlock - 1) / kBlock, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t offset = block * kBlock * in;
      const int64_t width = std::min(kBlock, out - block * kBlock);
      if (weight.scalar_type() == at::kFloat) {
        pack_block(weight.const_data_ptr<float>() + offset, in, width, values.mutable_data_ptr<float>() + offset);
      } else {
        pack_block(weight.const_data_ptr<c10::BFloat16>() + offset, in, width,
                   values.mutable_data_ptr<c10::BFloat16>() + offset);
      }
    }
  });
}

PackedBlocks::PackedBlocks(const PackedWeight& weight, int64_t index)
    : out(weight.out_features()), in(weight.in_features()), dtype(weight.dtype()) {
  const at::Tensor& values = weight.values(cpu_kernels());
  data = static_cast<const std::byte*>(values.const_data_ptr()) +
         static_cast<size_t>(index * out * in) * values.element_size();
}

void PackedBlocks::multiply(int64_t block, int64_t rows, const void* a, int64_t lda, float* c, int64_t ldc,
                            ProductPath path) const {
  const int64_t columns = width(block);
  if (dtype == at::kFloat) {
    block_product(path, rows, columns, in, static_cast<const float*>(a), lda,
                  reinterpret_cast<const float*>(data) + block * kBlock * in, columns, c, ldc);
  } else {
    block_product(path, rows, columns, in, static_cast<const c10::BFloat16*>(a), lda,
                  reinterpret_cast<const c10::BFloat16*>(data) + block * kBlock * in, columns, c, ldc);
  }
}

void PackedBlocks::multiply(int64_t rows, const void* a, int64_t lda, float* c, int64_t ldc, ProductPath path) const {
  for (int64_t block = 0; block < count(); ++block) {
    multiply(block, rows, a, lda, c + block * kBlock, ldc, path);
  }
}

}  // namespace reprise::cpu
