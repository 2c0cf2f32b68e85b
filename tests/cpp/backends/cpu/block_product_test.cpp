#include "backends/cpu/block_product.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

namespace reprise::cpu {
namespace {

using c10::BFloat16;

std::vector<ProductPath> paths(c10::ScalarType dtype) {
  if (product_path(dtype) == ProductPath::kPlain) return {ProductPath::kPlain};
  return {ProductPath::kBrgemm, ProductPath::kPlain};
}

const char* name(ProductPath path) { return path == ProductPath::kBrgemm ? "brgemm" : "plain"; }

template <typename T>
constexpr c10::ScalarType kType = c10::CppTypeToScalarType<T>::value;

// Operands with gaps of NaN between their rows. `right` holds b by rows, whatever the product's own layout is.
template <typename T>
struct Operands {
  int64_t m, n, k, lda, ldb;
  std::vector<T> a;
  std::vector<T> b;
  std::vector<double> left;   // [m, k]
  std::vector<double> right;  // [k, n]

  Operands(int64_t m, int64_t n, int64_t k, int64_t gap, std::mt19937& random)
      : m(m), n(n), k(k), lda(k + 2 * gap), ldb(n + gap) {
    const T nan = std::numeric_limits<float>::quiet_NaN();
    std::normal_distribution<float> normal;
    a.assign(static_cast<size_t>(m * lda), nan);
    b.assign(static_cast<size_t>(k * ldb), nan);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < k; ++j)
        left.push_back(a[static_cast<size_t>(i * lda + j)] = static_cast<T>(normal(random)));
    }
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        const int64_t at = sizeof(T) == 2 ? (i / 2 * ldb + j) * 2 + i % 2 : i * ldb + j;
        right.push_back(b[static_cast<size_t>(at)] = static_cast<T>(normal(random)));
      }
    }
  }

  double expected(int64_t row, int64_t column) const {
    double sum = 0;
    for (int64_t i = 0; i < k; ++i)
      sum += left[static_cast<size_t>(row * k + i)] * right[static_cast<size_t>(i * n + column)];
    return sum;
  }
};

template <typename T>
class BlockProduct : public ::testing::Test {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(BlockProduct, Types);

TYPED_TEST(BlockProduct, IsTheSumOfProductsAndStaysInItsRows) {
  constexpr unsigned kSeed = 11;
  std::mt19937 random(kSeed);
  constexpr float kUntouched = 123.25f;
  for (const auto& [m, n, k, gap] : std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t>>{
           {1, 1, 2, 0}, {1, 24, 64, 0}, {3, 96, 130, 8}, {17, 200, 32, 3}, {33, 16, 640, 0}, {128, 128, 254, 5}}) {
    const Operands<TypeParam> o(m, n, k, gap, random);
    for (const auto path : paths(kType<TypeParam>)) {
      const int64_t ldc = n + gap;
      std::vector<float> c(static_cast<size_t>(m * ldc), kUntouched);
      {
        const ProductScope scope(kType<TypeParam>);
        block_product(path, m, n, k, o.a.data(), o.lda, o.b.data(), o.ldb, c.data(), ldc);
      }
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < ldc; ++j) {
          const float got = c[static_cast<size_t>(i * ldc + j)];
          if (j >= n) {
            ASSERT_EQ(got, kUntouched) << name(path) << " wrote between the rows of c";
            continue;
          }
          // Products of bfloat16 are exact in float32, so both dtypes differ from the exact sum by the order of summing
          // alone.
          ASSERT_NEAR(got, o.expected(i, j), 2e-6 * static_cast<double>(k))
              << name(path) << " " << m << "x" << n << "x" << k << " at " << i << ", " << j << ", seed " << kSeed;
        }
      }
    }
  }
}

// The law that replay and chunked prefill build on.
TYPED_TEST(BlockProduct, ARowHasTheSameBitsForEveryNumberOfRows) {
  constexpr unsigned kSeed = 12;
  std::mt19937 random(kSeed);
  constexpr int64_t kRows = 300;
  for (const int64_t n : {24, 96, 128, 200, 288}) {
    const int64_t k = n == 128 ? 160 : 66;
    const Operands<TypeParam> o(kRows, n, k, 0, random);
    for (const auto path : paths(kType<TypeParam>)) {
      const ProductScope scope(kType<TypeParam>);
      std::vector<float> alone(static_cast<size_t>(kRows * n));
      for (int64_t i = 0; i < kRows; ++i) {
        block_product(path, 1, n, k, o.a.data() + i * o.lda, o.lda, o.b.data(), o.ldb, alone.data() + i * n, n);
      }
      std::vector<float> c(alone.size());
      for (int64_t m = 1; m <= kRows; ++m) {
        const int64_t first = static_cast<int64_t>(random() % static_cast<unsigned>(kRows - m + 1));
        block_product(path, m, n, k, o.a.data() + first * o.lda, o.lda, o.b.data(), o.ldb, c.data(), n);
        ASSERT_EQ(std::memcmp(c.data(), alone.data() + first * n, static_cast<size_t>(m * n) * sizeof(float)), 0)
            << name(path) << ": " << m << " rows of " << n << ", seed " << kSeed;
      }
    }
  }
}

TYPED_TEST(BlockProduct, ZeroRowsOfBAddExactlyNothing) {
  // Attention pads its keys with zero rows of probability zero.
  std::mt19937 random(13);
  const Operands<TypeParam> o(16, 64, 96, 0, random);
  for (const auto path : paths(kType<TypeParam>)) {
    const ProductScope scope(kType<TypeParam>);
    std::vector<TypeParam> a(o.a.begin(), o.a.end());
    std::vector<TypeParam> b(o.b.begin(), o.b.end());
    for (int64_t i = 0; i < 16; ++i) std::fill_n(a.begin() + i * o.lda + 64, 32, TypeParam(0));
    std::fill_n(b.begin() + 64 * o.ldb, 32 * o.ldb, TypeParam(0));
    std::vector<float> padded(16 * 64), dense(16 * 64);
    block_product(path, 16, 64, 96, a.data(), o.lda, b.data(), o.ldb, padded.data(), 64);
    block_product(path, 16, 64, 64, o.a.data(), o.lda, o.b.data(), o.ldb, dense.data(), 64);
    EXPECT_EQ(padded, dense) << name(path);
  }
}

}  // namespace
}  // namespace reprise::cpu
