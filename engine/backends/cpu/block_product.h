#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace reprise::cpu {

// How small products run: brgemm is oneDNN's micro-kernel through libtorch (AMX or AVX-512 where the CPU has them);
// kPlain is the specification, a loop that any CPU runs. Both give a row the same bits for every number of rows.
enum class ProductPath { kBrgemm, kPlain };

// The best path this CPU offers for operands of a dtype (float32 or bfloat16).
ProductPath product_path(c10::ScalarType dtype);

// c[m, n] = a[m, k] b[k, n] in float32; row strides lda, ldb, ldc in values.
void block_product(ProductPath path, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b,
                   int64_t ldb, float* c, int64_t ldc);
// The same for bfloat16; k is even and b is interleaved by pairs of rows: element (i, j) lies at (i / 2 * ldb + j) * 2
// + i % 2.
void block_product(ProductPath path, int64_t m, int64_t n, int64_t k, const c10::BFloat16* a, int64_t lda,
                   const c10::BFloat16* b, int64_t ldb, float* c, int64_t ldc);

// Puts back the tile state that products of a thread have set up; one per parallel chunk that calls block_product.
class ProductScope {
 public:
  explicit ProductScope(c10::ScalarType dtype) : dtype_(dtype) {}
  ~ProductScope();
  ProductScope(const ProductScope&) = delete;
  ProductScope& operator=(const ProductScope&) = delete;

 private:
  c10::ScalarType dtype_;
};

// Runs body(begin, end) over [0, count) on all threads, in pieces of `grain` handed out as threads become free, for
// pieces that differ in work; each thread stands in a ProductScope.
void parallel_products(c10::ScalarType dtype, int64_t count, int64_t grain,
                       c10::function_ref<void(int64_t, int64_t)> body);

}  // namespace reprise::cpu
