#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "backends/cpu/scratch.h"

// What the kernel tests share: random tensors, comparison with a double precision result, and the law that a row's
// result depends on that row alone.
namespace reprise {

// A kernel that reads scratch memory before it has written it gives NaN.
inline const cpu::ScratchPoison kScratchPoison;

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

inline at::Tensor normal(at::IntArrayRef sizes, std::mt19937& random, at::ScalarType dtype = at::kFloat,
                         float scale = 1) {
  at::Tensor x = at::empty(sizes, at::kFloat);
  std::normal_distribution<float> distribution(0, scale);
  float* data = x.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) data[i] = distribution(random);
  return x.to(dtype);
}

template <typename T>
at::Tensor tensor_of(const std::vector<T>& values) {
  at::Tensor x = at::empty({static_cast<int64_t>(values.size())}, at::CppTypeToScalarType<T>::value);
  std::copy(values.begin(), values.end(), x.mutable_data_ptr<T>());
  return x;
}

inline at::Tensor nans(at::IntArrayRef sizes, at::ScalarType dtype) { return at::full(sizes, kNotANumber, dtype); }

inline std::vector<double> doubles(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kDouble).contiguous();
  const double* data = wide.const_data_ptr<double>();
  return {data, data + wide.numel()};
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous();
  const at::Tensor y = b.contiguous();
  return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() &&
         (x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0);
}

// Three views of one error: no element is far off, the direction is right, and the error as a whole is small.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
  double cosine = 0;  // 1 - 2 <a, b> / (<a, a> + <b, b>)
  double rms = 0;     // of the error, over the rms of what is expected
};
constexpr Tolerance kFloatTolerance{2e-5, 2e-5, 1e-10, 2e-6};
constexpr Tolerance kBFloat16Tolerance{2e-2, 2e-2, 2e-5, 6e-3};

inline Tolerance tolerance_of(at::ScalarType dtype) {
  return dtype == at::kFloat ? kFloatTolerance : kBFloat16Tolerance;
}

inline void expect_close(const at::Tensor& actual, const std::vector<double>& expected, const Tolerance& tolerance) {
  const std::vector<double> got = doubles(actual);
  ASSERT_EQ(got.size(), expected.size());
  double product = 0;
  double squares = 0;
  double wanted_squares = 0;
  double error_squares = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = got[i] - expected[i];
    ASSERT_LE(std::fabs(error), tolerance.absolute + tolerance.relative * std::fabs(expected[i]))
        << "element " << i << ": " << got[i] << " is not " << expected[i];  // NaN fails too
    product += got[i] * expected[i];
    squares += got[i] * got[i];
    wanted_squares += expected[i] * expected[i];
    error_squares += error * error;
  }
  if (wanted_squares == 0) return;
  EXPECT_LE(1 - 2 * product / (squares + wanted_squares), tolerance.cosine);
  EXPECT_LE(std::sqrt(error_squares / wanted_squares), tolerance.rms);
}

// The kernel on a choice of rows: row i of its result belongs to rows[i].
using RowKernel = std::function<at::Tensor(const std::vector<int64_t>& rows)>;

inline at::Tensor rows_of(const at::Tensor& x, const std::vector<int64_t>& rows) {
  return x.index_select(0, tensor_of(rows));
}

// Single rows, random subsets in random order and another number of threads give every row the bits that the whole has.
inline void expect_rows_independent(int64_t num_rows, unsigned seed, const RowKernel& kernel) {
  std::mt19937 random(seed);
  std::vector<int64_t> all(static_cast<size_t>(num_rows));
  std::iota(all.begin(), all.end(), 0);
  const at::Tensor whole = kernel(all);
  const int threads = at::get_num_threads();
  at::set_num_threads(threads == 1 ? 2 : 1);
  EXPECT_TRUE(same_bits(kernel(all), whole)) << "another number of threads, seed " << seed;
  at::set_num_threads(threads);
  for (int trial = 0; trial < 24; ++trial) {
    std::vector<int64_t> rows = all;
    std::shuffle(rows.begin(), rows.end(), random);
    const auto size = trial < 12 ? 1 + static_cast<size_t>(trial) % 3 : 1 + random() % rows.size();
    rows.resize(std::min(rows.size(), size));
    EXPECT_TRUE(same_bits(kernel(rows), rows_of(whole, rows))) << rows.size() << " rows, seed " << seed;
  }
}

}  // namespace reprise
