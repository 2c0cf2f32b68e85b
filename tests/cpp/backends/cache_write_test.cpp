#include "backends/cache_write.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "backends/cpu/number_formats.h"
#include "kernel_testing.h"

namespace reprise {
namespace {

RopeRows random_angles(int64_t rows, int64_t half, std::mt19937& random) {
  const at::Tensor angle = normal({rows, half}, random, at::kFloat, 3);
  return {angle.cos(), angle.sin()};
}

// rope(rmsnorm(x)) in double; undefined weight: no norm. Heads of `dim` channels share the row's angles.
std::vector<double> rotated(const at::Tensor& x, const at::Tensor& weight, double eps, const RopeRows& rope,
                            int64_t head_dim) {
  const auto n = static_cast<size_t>(x.size(1)), dim = static_cast<size_t>(head_dim),
             half = static_cast<size_t>(rope.cos.size(1));
  std::vector<double> y = doubles(x);
  const auto cos = doubles(rope.cos), sin = doubles(rope.sin);
  const std::vector<double> w = weight.defined() ? doubles(weight) : std::vector<double>();
  for (size_t t = 0; t < static_cast<size_t>(x.size(0)); ++t) {
    double* row = y.data() + t * n;
    if (weight.defined()) {
      double squares = 0;
      for (size_t i = 0; i < n; ++i) squares += row[i] * row[i];
      for (size_t i = 0; i < n; ++i) row[i] = w[i] * (row[i] / std::sqrt(squares / static_cast<double>(n) + eps));
    }
    for (size_t head = 0; head < n; head += dim) {
      double* pairs = row + head + dim - 2 * half;
      for (size_t j = 0; j < half; ++j) {
        const double a = pairs[2 * j], b = pairs[2 * j + 1], c = cos[t * half + j], s = sin[t * half + j];
        pairs[2 * j] = a * c - b * s;
        pairs[2 * j + 1] = a * s + b * c;
      }
    }
  }
  return y;
}

constexpr CacheFormat kFormats[] = {CacheFormat::kNone, CacheFormat::kFp8, CacheFormat::kMxfp4, CacheFormat::kNvfp4};

// The formats have a test of their own; here only that the right one is applied, on whole heads.
void apply(CacheFormat format, float* row, int64_t n) {
  if (format == CacheFormat::kFp8) cpu::qdq_fp8(row, n);
  if (format == CacheFormat::kMxfp4) cpu::qdq_mxfp4(row, n);
  if (format == CacheFormat::kNvfp4) cpu::qdq_nvfp4(row, n);
}

class CacheWrite : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, CacheWrite, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST_P(CacheWrite, NormsAndRotatesIntoItsSlotAndTouchesNothingElse) {
  constexpr unsigned kSeed = 71;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (const bool with_norm : {true, false}) {
    for (const auto x_dtype : {at::kFloat, at::kBFloat16}) {
      const int64_t n = 48;
      const at::Tensor x = normal({6, n}, random, x_dtype, 2);
      const at::Tensor weight = with_norm ? normal({n}, random) : at::Tensor();
      const RopeRows rope = random_angles(6, 8, random);
      const std::vector<int64_t> slots{17, 0, 3, 19, 0, 1};  // 0 is the pad slot
      at::Tensor cells = nans({20, n}, GetParam());
      write_cells(x, {weight, 1e-20, rope, CacheFormat::kNone, tensor_of(slots)}, cells);
      const auto wanted = rotated(x, weight, 1e-20, rope, n);
      for (int64_t cell = 0; cell < 20; ++cell) {
        const auto row = std::find(slots.begin(), slots.end(), cell) - slots.begin();
        if (cell == 0 || row == 6) {
          EXPECT_TRUE(cells[cell].isnan().all().item<bool>()) << "cell " << cell << " was written";
        } else {
          expect_close(cells[cell], {wanted.begin() + row * n, wanted.begin() + (row + 1) * n},
                       tolerance_of(GetParam()));
        }
      }
    }
  }
}

TEST_P(CacheWrite, RoundsToTheFormatAsked) {
  constexpr unsigned kSeed = 72;
  std::mt19937 random(kSeed);
  const int64_t n = 64;
  const RopeRows still{at::full({5, 8}, 1.0, at::kFloat), at::full({5, 8}, 0.0, at::kFloat)};
  for (const CacheFormat format : kFormats) {
    const at::Tensor x = normal({5, n}, random, GetParam(), 4);
    at::Tensor wanted = x.to(at::kFloat).clone();
    for (int64_t t = 0; t < 5; ++t) apply(format, wanted[t].mutable_data_ptr<float>(), n);
    at::Tensor cells = nans({6, n}, GetParam());
    write_cells(x, {{}, 1e-20, still, format, tensor_of<int64_t>({1, 2, 3, 4, 5})}, cells);
    EXPECT_TRUE(same_bits(cells.narrow(0, 1, 5).to(at::kFloat), wanted))
        << static_cast<int>(format) << ", seed " << kSeed;
  }
}

TEST(WriteCells, RoundsAfterTheNormAndTheRotation) {
  // By hand: the row's root mean square is 2, so the norm gives the weight; a quarter turn takes (3.2, 5.1) to
  // (-5.1, 3.2); the largest magnitude 5.1 needs the scale 1.
  at::Tensor x = at::full({1, 32}, 2.0, at::kFloat);
  at::Tensor weight = at::full({32}, 1.0, at::kFloat);
  weight[30] = 3.2f;
  weight[31] = 5.1f;
  at::Tensor cells = nans({2, 32}, at::kFloat);
  const RopeRows quarter_turn{at::full({1, 1}, 0.0, at::kFloat), at::full({1, 1}, 1.0, at::kFloat)};
  write_cells(x, {weight, 0, quarter_turn, CacheFormat::kMxfp4, tensor_of<int64_t>({1})}, cells);
  auto wanted = std::vector<double>(32, 1);
  wanted[30] = -6;  // past the midpoint 5
  wanted[31] = 3;
  EXPECT_EQ(doubles(cells[1]), wanted);
}

TEST_P(CacheWrite, AllZeroRowsAreCachedAsZeros) {
  for (const CacheFormat format : kFormats) {
    at::Tensor cells = nans({2, 64}, GetParam());
    const RopeRows rope{at::full({1, 8}, 0.6, at::kFloat), at::full({1, 8}, 0.8, at::kFloat)};
    write_cells(at::full({1, 64}, 0.0, GetParam()),
                {at::full({64}, 1.0, at::kFloat), 1e-20, rope, format, tensor_of<int64_t>({1})}, cells);
    EXPECT_EQ(doubles(cells[1]), std::vector<double>(64, 0));
  }
}

TEST_P(CacheWrite, HeadsAreRotatedAndRoundedOneByOne) {
  constexpr unsigned kSeed = 73;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const int64_t heads = 3, dim = 32;
  const at::Tensor x = normal({7, heads * dim}, random, GetParam());
  const RopeRows rope = random_angles(7, 4, random);
  expect_close(rotate_and_round(x, dim, rope, CacheFormat::kNone), rotated(x, {}, 0, rope, dim),
               tolerance_of(GetParam()));
  const RopeRows still{at::full({7, 4}, 1.0, at::kFloat), at::full({7, 4}, 0.0, at::kFloat)};
  for (const CacheFormat format : kFormats) {
    at::Tensor wanted = x.to(at::kFloat).clone();
    for (int64_t t = 0; t < 7; ++t) apply(format, wanted[t].mutable_data_ptr<float>(), heads * dim);
    EXPECT_TRUE(same_bits(rotate_and_round(x, dim, still, format).to(at::kFloat), wanted)) << static_cast<int>(format);
  }
}

TEST_P(CacheWrite, ARowDependsOnItselfAlone) {
  std::mt19937 random(74);
  const int64_t T = 61, n = 64;
  const at::Tensor x = normal({T, n}, random, GetParam());
  const at::Tensor weight = normal({n}, random);
  const RopeRows rope = random_angles(T, 8, random);
  for (const CacheFormat format : kFormats) {
    expect_rows_independent(T, 74, [&](const std::vector<int64_t>& rows) {
      at::Tensor cells = nans({static_cast<int64_t>(rows.size()) + 1, n}, GetParam());
      std::vector<int64_t> slots(rows.size());
      std::iota(slots.begin(), slots.end(), 1);
      const RopeRows of_rows{rows_of(rope.cos, rows), rows_of(rope.sin, rows)};
      write_cells(rows_of(x, rows), {weight, 1e-20, of_rows, format, tensor_of(slots)}, cells);
      return cells.narrow(0, 1, static_cast<int64_t>(rows.size()));
    });
    expect_rows_independent(T, 75, [&](const auto& rows) {
      return rotate_and_round(rows_of(x, rows), 32, {rows_of(rope.cos, rows), rows_of(rope.sin, rows)}, format);
    });
  }
}

TEST(WriteCells, SaysWhatDoesNotFit) {
  std::mt19937 random(76);
  const RopeRows rope = random_angles(2, 4, random);
  at::Tensor cells = nans({4, 32}, at::kFloat);
  const CellWrite two{.rope = rope, .slots = tensor_of<int64_t>({1, 2})};
  EXPECT_THROW(write_cells(normal({2, 64}, random), two, cells), std::logic_error);
  const CellWrite one{.rope = rope, .slots = tensor_of<int64_t>({1})};
  EXPECT_THROW(write_cells(normal({2, 32}, random), one, cells), std::logic_error);
  EXPECT_THROW(rotate_and_round(normal({2, 40}, random), 32, rope, CacheFormat::kNone), std::logic_error);
}

}  // namespace
}  // namespace reprise
