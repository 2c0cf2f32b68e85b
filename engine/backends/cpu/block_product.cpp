#include "backends/cpu/block_product.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>

#include "backends/cpu/row_ops.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/targets.h"

namespace reprise::cpu {

namespace {

// Whether libtorch's micro-kernel runs here; it throws where the CPU lacks the instructions.
template <typename T>
bool probe_brgemm() {
  std::array<T, 16 * 32> a{};
  std::array<T, 32 * 16> b{};
  std::array<float, 16 * 16> c{};
  try {
    at::native::cpublas::brgemm(16, 16, 32, 32, 16, 16, false, a.data(), b.data(), c.data(), sizeof(T) == 2);
    at::native::cpublas::brgemm_release(sizeof(T) == 2);
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

REPRISE_CLONES void plain_row(int64_t n, int64_t k, const float* a, const float* b, int64_t ldb, float* c) {
  for (int64_t j = 0; j < n; ++j) c[j] = 0;
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = 0; j < n; ++j) c[j] += a[i] * b[i * ldb + j];
  }
}

REPRISE_INLINE float widen(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

REPRISE_CLONES void plain_row_interleaved(int64_t n, int64_t k, const float* a, const uint32_t* pairs, int64_t ldb,
                                          float* c) {
  for (int64_t j = 0; j < n; ++j) c[j] = 0;
  for (int64_t i = 0; i < k / 2; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const uint32_t pair = pairs[i * ldb + j];
      c[j] += a[2 * i] * widen(pair << 16);
      c[j] += a[2 * i + 1] * widen(pair & 0xFFFF0000u);
    }
  }
}

}  // namespace

ProductPath product_path(c10::ScalarType dtype) {
  static const bool float32 = probe_brgemm<float>();
  static const bool bfloat16 = probe_brgemm<c10::BFloat16>();
  return (dtype == c10::ScalarType::Float ? float32 : bfloat16) ? ProductPath::kBrgemm : ProductPath::kPlain;
}

void block_product(ProductPath path, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b,
                   int64_t ldb, float* c, int64_t ldc) {
  if (path == ProductPath::kBrgemm) {
    at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, false, a, b, c, false);
    return;
  }
  for (int64_t row = 0; row < m; ++row) plain_row(n, k, a + row * lda, b, ldb, c + row * ldc);
}

void block_product(ProductPath path, int64_t m, int64_t n, int64_t k, const c10::BFloat16* a, int64_t lda,
                   const c10::BFloat16* b, int64_t ldb, float* c, int64_t ldc) {
  if (path == ProductPath::kBrgemm) {
    at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, false, a, b, c, true);
    return;
  }
  ScratchFrame frame;
  float* wide = frame.take<float>(k);
  for (int64_t row = 0; row < m; ++row) {
    load_row(a + row * lda, c10::ScalarType::BFloat16, wide, k);
    plain_row_interleaved(n, k, wide, reinterpret_cast<const uint32_t*>(b), ldb, c + row * ldc);
  }
}

ProductScope::~ProductScope() {
  if (dtype_ == c10::ScalarType::BFloat16 && product_path(dtype_) == ProductPath::kBrgemm) {
    at::native::cpublas::brgemm_release(true);
  }
}

void parallel_products(c10::ScalarType dtype, int64_t count, int64_t grain,
                       c10::function_ref<void(int64_t, int64_t)> body) {
  const int64_t pieces = (count + grain - 1) / grain;
  std::atomic<int64_t> next{0};
  at::parallel_for(0, std::min<int64_t>(at::get_num_threads(), pieces), 1, [&](int64_t, int64_t) {
    const ProductScope scope(dtype);
    for (int64_t piece = next++; piece < pieces; piece = next++)
      body(piece * grain, std::min((piece + 1) * grain, count));
  });
}

}  // namespace reprise::cpu
