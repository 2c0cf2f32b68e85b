#include "backends/cpu/vector_math.h"

#include <c10/util/BFloat16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace reprise::cpu {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Distance from the exact value in units of the fp32 spacing there.
double ulp_error(float actual, double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::fabs(actual - exact) / std::ldexp(1.0, std::max(exponent - 1, -126) - 23);
}

struct Worst {
  double ulp = 0;
  float at = 0;
};

// Every 1009th float of [low, high], and a linear sweep.
template <class F, class G>
Worst sweep(float low, float high, F fast, G exact) {
  Worst worst;
  const auto look = [&](float x) {
    if (!(x >= low && x <= high)) return;
    const double error = ulp_error(fast(x), exact(static_cast<double>(x)));
    if (!(error <= worst.ulp)) worst = {error, x};
  };
  for (uint64_t bits = 0; bits < 0x7F800000u; bits += 1009) {
    look(std::bit_cast<float>(static_cast<uint32_t>(bits)));
    look(-std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  for (int i = 0; i <= 500000; ++i) look(low + (high - low) * static_cast<float>(i / 500000.0));
  look(low), look(high);
  return worst;
}

double exact_exp(double x) { return std::exp(x); }
double exact_sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double exact_silu(double x) { return x / (1 + std::exp(-x)); }
double exact_softplus(double x) { return std::log1p(std::exp(x)); }
double exact_log1p(double x) { return std::log1p(x); }

#define EXPECT_WITHIN_ULP(bound, worst)                                                         \
  do {                                                                                          \
    const Worst found = worst;                                                                  \
    EXPECT_LE(found.ulp, bound) << "at " << found.at;                                           \
    RecordProperty("worst_ulp", std::to_string(found.ulp) + " at " + std::to_string(found.at)); \
  } while (false)

TEST(VectorMath, ExpIsWithinOneUlp) {
  EXPECT_WITHIN_ULP(1, sweep(-87, 88, [](float x) { return exp_f(x); }, exact_exp));
}
TEST(VectorMath, ExpIsWithinOneUlpUpToOverflowAndDownToZero) {
  EXPECT_WITHIN_ULP(1, sweep(-110, 88.72283f, [](float x) { return exp_f(x); }, exact_exp));
}
TEST(VectorMath, SigmoidIsWithinThreeUlp) {
  EXPECT_WITHIN_ULP(3, sweep(-87, 200, [](float x) { return sigmoid_f(x); }, exact_sigmoid));
}
TEST(VectorMath, SiluIsWithinThreeUlp) {
  EXPECT_WITHIN_ULP(3, sweep(-87, 1e30f, [](float x) { return silu_f(x); }, exact_silu));
}
TEST(VectorMath, Log1pIsWithinOneUlp) {
  EXPECT_WITHIN_ULP(1, sweep(0, std::numeric_limits<float>::max(), [](float x) { return log1p_f(x); }, exact_log1p));
}
TEST(VectorMath, SoftplusIsWithinTwoUlp) {
  EXPECT_WITHIN_ULP(2, sweep(-103, 700, [](float x) { return softplus_f(x); }, exact_softplus));
}

TEST(VectorMath, SpecialValues) {
  EXPECT_EQ(exp_f(0.0f), 1.0f);
  EXPECT_EQ(exp_f(-0.0f), 1.0f);
  for (const float x : {-104.0f, -104.5f, -1e30f, -kInf}) EXPECT_EQ(exp_f(x), 0.0f) << x;
  for (const float x : {88.73f, 89.0f, 1e30f, kInf}) EXPECT_EQ(exp_f(x), kInf) << x;
  EXPECT_EQ(sigmoid_f(0.0f), 0.5f);
  EXPECT_EQ(sigmoid_f(-kInf), 0.0f);
  EXPECT_EQ(sigmoid_f(kInf), 1.0f);
  EXPECT_EQ(silu_f(0.0f), 0.0f);
  EXPECT_EQ(silu_f(-1e30f), 0.0f);
  EXPECT_EQ(silu_f(kInf), kInf);
  EXPECT_EQ(log1p_f(0.0f), 0.0f);
  EXPECT_EQ(log1p_f(kInf), kInf);
  EXPECT_EQ(softplus_f(-kInf), 0.0f);
  EXPECT_EQ(softplus_f(20.5f), 20.5f);
  EXPECT_EQ(softplus_f(kInf), kInf);
  for (const float nan : {kNan, -kNan})
    for (const float y : {exp_f(nan), sigmoid_f(nan), silu_f(nan), log1p_f(nan), softplus_f(nan)})
      EXPECT_TRUE(std::isnan(y));
}

// The same loop compiled for each instruction set; one result is wanted from all, element by element.
enum Function { kExp, kSigmoid, kSilu, kSoftplus, kLog1p, kRound, kNumFunctions };

REPRISE_INLINE void loop(Function function, const float* __restrict in, float* __restrict out, int n) {
  switch (function) {
    case kExp:
      for (int i = 0; i < n; ++i) out[i] = exp_f(in[i]);
      break;
    case kSigmoid:
      for (int i = 0; i < n; ++i) out[i] = sigmoid_f(in[i]);
      break;
    case kSilu:
      for (int i = 0; i < n; ++i) out[i] = silu_f(in[i]);
      break;
    case kSoftplus:
      for (int i = 0; i < n; ++i) out[i] = softplus_f(in[i]);
      break;
    case kLog1p:
      for (int i = 0; i < n; ++i) out[i] = log1p_f(std::bit_cast<float>(std::bit_cast<uint32_t>(in[i]) & 0x7FFFFFFFu));
      break;
    default:
      for (int i = 0; i < n; ++i) out[i] = bf16_to_float(float_to_bf16(in[i]));
      break;
  }
}

struct Build {
  std::string name;
  void (*run)(Function, const float*, float*, int);
};
void run_baseline(Function f, const float* in, float* out, int n) { loop(f, in, out, n); }
#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void run_avx2(Function f, const float* in, float* out, int n) {
  loop(f, in, out, n);
}
__attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"))) void run_avx512(Function f, const float* in,
                                                                                       float* out, int n) {
  loop(f, in, out, n);
}
#endif

std::vector<Build> builds() {
  std::vector<Build> list{{"baseline", run_baseline}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) list.push_back({"avx2", run_avx2});
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    list.push_back({"avx512", run_avx512});
#endif
  return list;
}

TEST(VectorMath, OneResultAloneAndInLoopsOfAnyLengthOnEveryInstructionSet) {
  constexpr unsigned kSeed = 11;
  std::mt19937 random(kSeed);
  std::uniform_real_distribution<float> uniform(-110, 95);
  std::normal_distribution<float> normal;
  std::vector<float> in(4096);
  for (size_t i = 0; i < in.size(); ++i) in[i] = i % 2 ? uniform(random) : normal(random);
  in[1] = kInf, in[9] = -kInf, in[17] = kNan, in[23] = -0.0f;
  for (int function = 0; function < kNumFunctions; ++function) {
    std::vector<float> alone(in.size()), out(in.size());
    for (size_t i = 0; i < in.size(); ++i) run_baseline(static_cast<Function>(function), &in[i], &alone[i], 1);
    const auto check = [&](const Build& build, int start, int length) {
      build.run(static_cast<Function>(function), &in[start], out.data(), length);
      for (int i = 0; i < length; ++i)
        ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(alone[start + i]))
            << build.name << ", function " << function << " of " << in[start + i] << ", length " << length
            << ", seed 11";
    };
    for (const Build& build : builds()) {
      for (int length = 1; length <= 67; ++length) check(build, length % 5, length);
      check(build, 0, static_cast<int>(in.size()));
    }
  }
}

TEST(Bfloat16, EveryCodeSurvivesTheRoundTrip) {
  for (uint32_t code = 0; code < 0x10000u; ++code) {
    const float x = bf16_to_float(static_cast<uint16_t>(code));
    const c10::BFloat16 torch_value(static_cast<unsigned short>(code), c10::BFloat16::from_bits());
    EXPECT_EQ(std::bit_cast<uint32_t>(x), std::bit_cast<uint32_t>(static_cast<float>(torch_value)));
    EXPECT_EQ(float_to_bf16(x), std::isnan(x) ? 0x7FC0u : code);
  }
}

TEST(Bfloat16, RoundsAsTorchDoes) {
  for (uint64_t bits = 0; bits < 0x100000000u; bits += 4093) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    ASSERT_EQ(float_to_bf16(x), c10::BFloat16(x).x) << bits;
  }
  EXPECT_EQ(bf16_to_float(float_to_bf16(1.00390625f)), 1.0f);       // 1 + 2^-8: a tie, down to even
  EXPECT_EQ(bf16_to_float(float_to_bf16(1.01171875f)), 1.015625f);  // 1 + 3 * 2^-8: a tie, up to even
  EXPECT_EQ(bf16_to_float(float_to_bf16(std::numeric_limits<float>::max())), kInf);
}

TEST(Bfloat16, ArraysOfEitherTypeConvert) {
  std::vector<float> in(67), back(67);
  for (size_t i = 0; i < in.size(); ++i) in[i] = 0.37f * static_cast<float>(i) - 9.0f;
  std::vector<uint16_t> codes(67);
  std::vector<c10::BFloat16> values(67);
  float_to_bf16(in.data(), codes.data(), 67);
  float_to_bf16(in.data(), values.data(), 67);
  bf16_to_float(values.data(), back.data(), 67);
  for (size_t i = 0; i < in.size(); ++i) {
    EXPECT_EQ(codes[i], c10::BFloat16(in[i]).x);
    EXPECT_EQ(values[i].x, codes[i]);
    EXPECT_EQ(back[i], static_cast<float>(c10::BFloat16(in[i])));
  }
}

}  // namespace
}  // namespace reprise::cpu
