#include "backends/cpu/number_formats.h"

#include <c10/util/Float8_e4m3fn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace reprise::cpu {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// The non-negative values of a format with 1 sign, exponent and mantissa bits, decoded code by code; index = code.
std::vector<double> decode_all(int num_codes, int mantissa_bits, int bias) {
  std::vector<double> values;
  for (int code = 0; code < num_codes; ++code) {
    const int exponent = code >> mantissa_bits;
    const double fraction = std::ldexp(code & ((1 << mantissa_bits) - 1), -mantissa_bits);
    values.push_back(exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias));
  }
  return values;
}
const std::vector<double>& e4m3_values() {  // code 127 is NaN
  static const std::vector<double> values = decode_all(127, 3, 7);
  return values;
}
const std::vector<double>& e2m1_values() {
  static const std::vector<double> values = decode_all(8, 1, 1);
  return values;
}

// Brute force: the nearest value, of two equally near the one with the even code.
double nearest(const std::vector<double>& values, double x) {
  size_t best = 0;
  const double magnitude = std::min(std::fabs(x), values.back());
  for (size_t code = 1; code < values.size(); ++code) {
    const double gain = std::fabs(values[best] - magnitude) - std::fabs(values[code] - magnitude);
    if (gain > 0 || (gain == 0 && code % 2 == 0)) best = code;
  }
  return std::copysign(values[best], x);
}

// Every value, every midpoint, and their fp32 neighbours, with both signs.
std::vector<float> critical_points(const std::vector<double>& values) {
  std::vector<float> points;
  for (size_t i = 0; i < values.size(); ++i) {
    std::vector<double> centres{values[i]};
    if (i + 1 < values.size()) centres.push_back((values[i] + values[i + 1]) / 2);
    for (const double centre : centres) {
      const float x = static_cast<float>(centre);  // exact
      for (const float y : {std::nextafter(x, -kInf), x, std::nextafter(x, kInf)}) points.insert(points.end(), {y, -y});
    }
  }
  return points;
}

bool same_bits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

TEST(RoundToE4m3, IsTheNearestOfAllCodesWithTiesToEven) {
  EXPECT_EQ(e4m3_values().back(), 448.0);
  for (const float x : critical_points(e4m3_values()))
    EXPECT_TRUE(same_bits(round_to_e4m3(x), static_cast<float>(nearest(e4m3_values(), x)))) << x;
}

TEST(RoundToE4m3, AgreesWithTorchUpTo448) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> exponent(-12, 9);
  for (int i = 0; i < 20000; ++i) {
    const float x = std::clamp(std::exp2(exponent(random)) * (i % 2 ? 1.0f : -1.0f), -448.0f, 448.0f);
    EXPECT_TRUE(same_bits(round_to_e4m3(x), static_cast<float>(c10::Float8_e4m3fn(x)))) << "seed 1, x " << x;
  }
}

TEST(RoundToE4m3, SaturatesAndKeepsNan) {
  EXPECT_EQ(round_to_e4m3(1e30f), 448.0f);
  EXPECT_EQ(round_to_e4m3(-kInf), -448.0f);
  EXPECT_TRUE(std::isnan(round_to_e4m3(kNan)));
  EXPECT_TRUE(std::isnan(round_to_e4m3(-kNan)));
}

TEST(RoundToE2m1, HasTheEightLevelsAndTiesOfTheSpecification) {
  EXPECT_EQ(e2m1_values(), (std::vector<double>{0, .5, 1, 1.5, 2, 3, 4, 6}));
  const std::pair<float, float> ties[] = {{.25f, 0}, {.75f, 1}, {1.25f, 1}, {1.75f, 2}, {2.5f, 2}, {3.5f, 4}, {5, 4}};
  for (const auto& [x, rounded] : ties) {
    EXPECT_EQ(round_to_e2m1(x), rounded) << x;
    EXPECT_EQ(round_to_e2m1(-x), -rounded) << x;
  }
  for (const float x : critical_points(e2m1_values()))
    EXPECT_TRUE(same_bits(round_to_e2m1(x), static_cast<float>(nearest(e2m1_values(), x)))) << x;
  EXPECT_EQ(round_to_e2m1(7.0f), 6.0f);
  EXPECT_EQ(round_to_e2m1(-kInf), -6.0f);
  EXPECT_TRUE(std::isnan(round_to_e2m1(kNan)));
}

// The specification once more, group by group, with frexp for the power of two and the tables above for the values.
using Qdq = void (*)(float*, int64_t);
void fp8(float* row, int64_t n) { qdq_fp8(row, n); }
void mxfp4(float* row, int64_t n) { qdq_mxfp4(row, n); }
void nvfp4(float* row, int64_t n) { qdq_nvfp4(row, n); }

struct Format {
  const char* name;
  Qdq qdq;
  int64_t group;
};
constexpr Format kFormats[] = {{"fp8", fp8, 32}, {"mxfp4", mxfp4, 32}, {"nvfp4", nvfp4, 16}};

double ceil_to_power_of_two(float x) {
  int exponent = 0;
  return std::frexp(x, &exponent) == 0.5f ? x : std::ldexp(1.0, exponent);
}

std::vector<float> expected(const Format& format, std::vector<float> row) {
  for (size_t start = 0; start < row.size(); start += format.group) {
    float amax = 0;
    for (int64_t i = 0; i < format.group; ++i) amax = std::max(amax, std::fabs(row[start + i]));
    const bool is_fp8 = format.qdq == fp8;
    double scale = 0;
    if (is_fp8) scale = ceil_to_power_of_two(std::max(amax, 1e-4f) * (1.0f / 448.0f));
    if (format.qdq == mxfp4) scale = ceil_to_power_of_two(std::max(amax, std::ldexp(6.0f, -126)) * (1.0f / 6.0f));
    if (format.qdq == nvfp4) scale = nearest(e4m3_values(), std::max(amax, std::ldexp(6.0f, -9)) / 6.0f);
    for (int64_t i = 0; i < format.group; ++i) {
      const float quotient = row[start + i] / static_cast<float>(scale);
      row[start + i] = static_cast<float>(nearest(is_fp8 ? e4m3_values() : e2m1_values(), quotient) * scale);
    }
  }
  return row;
}

void expect_as_specified(const Format& format, const std::vector<float>& row, const std::string& what) {
  std::vector<float> actual = row;
  format.qdq(actual.data(), static_cast<int64_t>(actual.size()));
  const std::vector<float> wanted = expected(format, row);
  for (size_t i = 0; i < row.size(); ++i)
    ASSERT_TRUE(same_bits(actual[i], wanted[i]))
        << format.name << ", " << what << ": " << row[i] << " became " << actual[i] << ", not " << wanted[i];
}

TEST(Qdq, RandomRowsOfManyMagnitudes) {
  constexpr unsigned kSeed = 7;
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> exponent(-40, 11);
  for (const Format& format : kFormats) {
    for (int trial = 0; trial < 200; ++trial) {
      std::vector<float> row(96);
      for (int64_t i = 0, n = 96; i < n; ++i) row[i] = normal(random);
      for (int64_t start = 0; start < 96; start += 16) {
        const float scale = std::exp2(exponent(random));
        for (int64_t i = start; i < start + 16; ++i) row[i] *= scale;
      }
      expect_as_specified(format, row, "seed 7");
    }
  }
}

// The scale steps up just past a power of two times the format's largest value.
TEST(Qdq, ScaleEdges) {
  for (const Format& format : kFormats) {
    for (int power = -130; power <= 100; ++power) {
      for (const float top : {448.0f, 6.0f, 1.0f, 4.0f}) {
        const float centre = std::ldexp(top, power);
        for (const float amax : {std::nextafter(centre, 0.0f), centre, std::nextafter(centre, kInf)}) {
          std::vector<float> row(static_cast<size_t>(format.group));
          for (size_t i = 0; i < row.size(); ++i)
            row[i] = amax * (static_cast<float>(i) / (row.size() - 1)) * (i % 2 ? 1 : -1);
          expect_as_specified(format, row, "amax " + std::to_string(amax));
        }
      }
    }
  }
}

TEST(Qdq, FloorOfTheFp8Scale) {
  for (const float amax : {0.0f, 1e-30f, 9.99e-5f, 1e-4f, 1.01e-4f, 1.2e-4f}) {
    std::vector<float> row(32, amax);
    expect_as_specified(kFormats[0], row, std::to_string(amax));
  }
  std::vector<float> row(32, 2e-10f);  // less than half of the smallest step, 2^-22 * 2^-9
  qdq_fp8(row.data(), 32);
  EXPECT_EQ(row, std::vector<float>(32, 0.0f));
}

TEST(Qdq, ByHand) {
  // fp8: amax 448 gives scale 1; 17 lies between 16 and 18, a tie that goes to the even mantissa.
  std::vector<float> row(32, 0.0f);
  row[0] = 448, row[1] = 17, row[2] = -19, row[3] = 0.3f;
  qdq_fp8(row.data(), 32);
  EXPECT_EQ((std::vector<float>(row.begin(), row.begin() + 5)), (std::vector<float>{448, 16, -20, 0.3125f, 0}));
  // mxfp4: amax 7 gives scale 2.
  row.assign(32, 0.0f);
  row[0] = 7, row[1] = -2.5f, row[2] = 0.5f;
  qdq_mxfp4(row.data(), 32);
  EXPECT_EQ((std::vector<float>(row.begin(), row.begin() + 4)), (std::vector<float>{8, -2, 0, 0}));
  // nvfp4: amax 7 gives E4M3(7 / 6) = 1.125.
  row.assign(16, 0.0f);
  row[0] = 7, row[1] = -2.5f, row[2] = 0.5f;
  qdq_nvfp4(row.data(), 16);
  EXPECT_EQ((std::vector<float>(row.begin(), row.begin() + 4)), (std::vector<float>{6.75f, -2.25f, 0.5625f, 0}));
}

TEST(Qdq, ZeroRowsStayZeroWithTheirSigns) {
  for (const Format& format : kFormats) {
    std::vector<float> row(64, 0.0f);
    row[5] = -0.0f;
    std::vector<float> before = row;
    format.qdq(row.data(), 64);
    for (size_t i = 0; i < 64; ++i) EXPECT_TRUE(same_bits(row[i], before[i])) << format.name << " " << i;
  }
}

TEST(Qdq, EveryResultFitsBfloat16) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const Format& format : kFormats) {
    std::vector<float> row(1024);
    for (float& x : row) x = normal(random);
    format.qdq(row.data(), 1024);
    for (const float x : row) EXPECT_EQ(std::bit_cast<uint32_t>(x) & 0xFFFFu, 0u) << format.name << ", seed 3: " << x;
  }
}

TEST(Qdq, NanAndInfinityMakeTheirGroupNanAndNoOther) {
  for (const Format& format : kFormats) {
    for (const float poison : {kNan, -kNan, kInf, -kInf}) {
      std::vector<float> row(96, 1.0f);
      row[40] = poison;  // group 1 of 32, group 2 of 16
      row[41] = 0.0f;
      format.qdq(row.data(), 96);
      for (int64_t i = 0; i < 96; ++i)
        EXPECT_EQ(std::isnan(row[i]), i / format.group == 40 / format.group)
            << format.name << " " << poison << " " << i;
    }
  }
}

}  // namespace
}  // namespace reprise::cpu
