#include "backends/linear.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "backends/cpu/packed_blocks.h"
#include "backends/cpu/row_ops.h"
#include "backends/cpu/scratch.h"
#include "memory/tensor_source.h"

namespace reprise::cpu {

namespace {

constexpr int64_t kRowBlock = 128;

}  // namespace

at::Tensor linear(const at::Tensor& x, const PackedWeight& weight, at::ScalarType out_dtype) {
  const int64_t groups = weight.count();
  const int64_t rows = x.size(0);
  const PackedBlocks blocks(weight);
  const int64_t in = blocks.in;
  at::Tensor y = empty_tensor({rows, groups * blocks.out}, x.options().dtype(out_dtype));
  const int64_t row_blocks = (rows + kRowBlock - 1) / kRowBlock;
  const int64_t group_tasks = blocks.count() * row_blocks;
  const auto* a = static_cast<const std::byte*>(x.const_data_ptr());
  auto* out = static_cast<std::byte*>(y.mutable_data_ptr());
  const int64_t lda = x.stride(0);
  const int64_t ldy = groups * blocks.out;
  const size_t a_size = x.element_size();
  const size_t y_size = y.element_size();
  const auto path = product_path(blocks.dtype);
  // Weight blocks outermost: a block stays in the cache while all rows pass by.
  at::parallel_for(0, groups * group_tasks, 1, [&](int64_t begin, int64_t end) {
    const ProductScope scope(blocks.dtype);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t group = task / group_tasks;
      const PackedBlocks of_group(weight, group);
      const int64_t block = task % group_tasks / row_blocks;
      const int64_t first = task % row_blocks * kRowBlock;
      const int64_t count = std::min(kRowBlock, rows - first);
      const int64_t width = blocks.width(block);
      const int64_t column = group * blocks.out + block * PackedBlocks::kBlock;
      const std::byte* a_rows = a + static_cast<size_t>(first * lda + group * in) * a_size;
      std::byte* y_rows = out + static_cast<size_t>(first * ldy + column) * y_size;
      if (out_dtype == at::kFloat) {
        of_group.multiply(block, count, a_rows, lda, reinterpret_cast<float*>(y_rows), ldy, path);
        continue;
      }
      ScratchFrame frame;
      float* sums = frame.take<float>(kRowBlock * PackedBlocks::kBlock);
      of_group.multiply(block, count, a_rows, lda, sums, width, path);
      for (int64_t row = 0; row < count; ++row) {
        store_row(sums + row * width, y_rows + static_cast<size_t>(row * ldy) * y_size, out_dtype, width);
      }
    }
  });
  return y;
}

}  // namespace reprise::cpu
