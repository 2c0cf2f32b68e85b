#include "backends/linear.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <span>

#include "backends/cpu/row_ops.h"
#include "memory/tensor_source.h"
#include "reprise/error.h"

namespace reprise {

namespace {

constexpr int64_t kRowBlock = 128;

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

void block_product_of(const PackedWeight& weight, int64_t block, int64_t rows, const void* a, int64_t lda, float* c,
                      int64_t ldc, cpu::ProductPath path) {
  const int64_t width = weight.block_width(block);
  const int64_t in = weight.in_features();
  if (weight.dtype() == at::kFloat) {
    cpu::block_product(path, rows, width, in, static_cast<const float*>(a), lda,
                       static_cast<const float*>(weight.block_data(block)), width, c, ldc);
  } else {
    cpu::block_product(path, rows, width, in, static_cast<const c10::BFloat16*>(a), lda,
                       static_cast<const c10::BFloat16*>(weight.block_data(block)), width, c, ldc);
  }
}

// y[:, group g] = x[:, group g] W_g^T, with the columns divided among weights of one shape; y is dense.
void multiply(const at::Tensor& x, std::span<const PackedWeight> weights, const at::Tensor& y) {
  const PackedWeight& shape = weights.front();
  for (const PackedWeight& weight : weights) {
    REPRISE_ENSURE(weight.in_features() == shape.in_features() && weight.out_features() == shape.out_features() &&
                       weight.dtype() == shape.dtype(),
                   "groups take weights of one shape and dtype");
  }
  const auto groups = static_cast<int64_t>(weights.size());
  const int64_t rows = x.size(0);
  const int64_t in = shape.in_features();
  const int64_t out_width = shape.out_features();
  REPRISE_ENSURE(x.dim() == 2 && x.size(1) == groups * in && x.scalar_type() == shape.dtype() && x.stride(1) == 1,
                 "linear takes rows of ", groups * in, " dense values in the weight's dtype");
  const int64_t row_blocks = (rows + kRowBlock - 1) / kRowBlock;
  const int64_t group_tasks = shape.num_blocks() * row_blocks;
  const auto* a = static_cast<const std::byte*>(x.const_data_ptr());
  auto* out = static_cast<std::byte*>(y.mutable_data_ptr());
  const int64_t lda = x.stride(0);
  const int64_t ldy = groups * out_width;
  const size_t a_size = x.element_size();
  const size_t y_size = y.element_size();
  const auto y_dtype = y.scalar_type();
  const auto path = cpu::product_path(shape.dtype());
  // Weight blocks outermost: a block stays in the cache while all rows pass by.
  at::parallel_for(0, groups * group_tasks, 1, [&](int64_t begin, int64_t end) {
    const cpu::ProductScope scope(shape.dtype());
    for (int64_t task = begin; task < end; ++task) {
      const int64_t group = task / group_tasks;
      const PackedWeight& weight = weights[static_cast<size_t>(group)];
      const int64_t block = task % group_tasks / row_blocks;
      const int64_t first = task % row_blocks * kRowBlock;
      const int64_t count = std::min(kRowBlock, rows - first);
      const int64_t width = weight.block_width(block);
      const int64_t column = group * out_width + block * PackedWeight::kBlock;
      const std::byte* a_rows = a + static_cast<size_t>(first * lda + group * in) * a_size;
      std::byte* y_rows = out + static_cast<size_t>(first * ldy + column) * y_size;
      if (y_dtype == at::kFloat) {
        block_product_of(weight, block, count, a_rows, lda, reinterpret_cast<float*>(y_rows), ldy, path);
        continue;
      }
      float* sums = cpu::Scratch::get<float>(0, kRowBlock * PackedWeight::kBlock);
      block_product_of(weight, block, count, a_rows, lda, sums, width, path);
      for (int64_t row = 0; row < count; ++row) {
        cpu::store_row(sums + row * width, y_rows + static_cast<size_t>(row * ldy) * y_size, y_dtype, width);
      }
    }
  });
}

}  // namespace

PackedWeight::PackedWeight(const at::Tensor& weight) : out_(weight.size(0)), in_(weight.size(1)) {
  REPRISE_ENSURE(
      weight.is_contiguous() && (weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kBFloat16),
      "a packed weight is dense float32 or bfloat16");
  REPRISE_ENSURE(weight.scalar_type() == at::kFloat || in_ % 2 == 0, "bfloat16 products want an even inner size, got ",
                 in_);
  packed_ = at::empty({out_ * in_}, weight.options());
  at::parallel_for(0, num_blocks(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t offset = block * kBlock * in_;
      if (dtype() == at::kFloat) {
        pack_block(weight.const_data_ptr<float>() + offset, in_, block_width(block),
                   packed_.mutable_data_ptr<float>() + offset);
      } else {
        pack_block(weight.const_data_ptr<c10::BFloat16>() + offset, in_, block_width(block),
                   packed_.mutable_data_ptr<c10::BFloat16>() + offset);
      }
    }
  });
}

const void* PackedWeight::block_data(int64_t block) const {
  return static_cast<const std::byte*>(packed_.const_data_ptr()) +
         static_cast<size_t>(block * kBlock * in_) * packed_.element_size();
}

at::Tensor linear(const at::Tensor& x, const PackedWeight& weight, at::ScalarType out_dtype) {
  at::Tensor y = empty_tensor({x.size(0), weight.out_features()}, x.options().dtype(out_dtype));
  multiply(x, {&weight, 1}, y);
  return y;
}

at::Tensor grouped_linear(const at::Tensor& x, const std::vector<PackedWeight>& weights, at::ScalarType out_dtype) {
  REPRISE_ENSURE(!weights.empty(), "linear takes at least one weight");
  const auto groups = static_cast<int64_t>(weights.size());
  at::Tensor y = empty_tensor({x.size(0), groups * weights.front().out_features()}, x.options().dtype(out_dtype));
  multiply(x, weights, y);
  return y;
}

namespace cpu {

void packed_product(const PackedWeight& weight, int64_t rows, const void* a, int64_t lda, float* c, int64_t ldc,
                    ProductPath path) {
  for (int64_t block = 0; block < weight.num_blocks(); ++block) {
    block_product_of(weight, block, rows, a, lda, c + block * PackedWeight::kBlock, ldc, path);
  }
}

}  // namespace cpu

}  // namespace reprise
