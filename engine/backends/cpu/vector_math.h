#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "backends/cpu/targets.h"

// Elementwise fp32 functions written so that loops over them vectorize: no branches, no library calls, no fused
// multiply-adds. A value has one result, alone or in a loop of any length, on every instruction set.
// Wants round-to-nearest, no fast-math, and -ffp-contract=off.

namespace reprise::cpu {

// `condition ? a : b` by masks: GCC turns the conditional into a branch around an expensive b, which cannot vectorize.
REPRISE_INLINE float choose(bool condition, float a, float b) {
  const uint32_t mask = -static_cast<uint32_t>(condition);
  return std::bit_cast<float>((std::bit_cast<uint32_t>(a) & mask) | (std::bit_cast<uint32_t>(b) & ~mask));
}

// e^x within 1 ulp (subnormal results too); 0 from -104 down, infinity past log(FLT_MAX), NaN stays NaN.
REPRISE_INLINE float exp_f(float x) {
  x = choose(x > 89.0f, 89.0f, x);  // e^89 overflows by itself, e^-104 underflows to 0
  x = choose(x < -104.0f, -104.0f, x);
  // k = round(x / ln 2), read from the low bits of a sum with 1.5 * 2^23; x = k ln 2 + r, |r| <= 0.35.
  constexpr float kShifter = 0x1.8p23f;
  const float shifted = x * 1.44269504f + kShifter;
  const int32_t k = static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kShifter));
  const float k_float = shifted - kShifter;
  const float r = (x - k_float * 0.693359375f) - k_float * -2.12194440e-4f;  // the first product is exact
  float p = 1.9875691500e-4f;                                                // Cephes expf
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * (r * r) + r) + 1.0f;
  // 2^k in two factors, since k from -150 to 128 is more than one float's exponent holds.
  const int32_t half = k >> 1;
  const float scale_a = std::bit_cast<float>(static_cast<uint32_t>(half + 127) << 23);
  const float scale_b = std::bit_cast<float>(static_cast<uint32_t>(k - half + 127) << 23);
  return p * scale_a * scale_b;
}

// 1 / (1 + e^-x), within 3 ulp for x >= -87; 0 where e^-x overflows.
REPRISE_INLINE float sigmoid_f(float x) { return 1.0f / (1.0f + exp_f(-x)); }

// x * sigmoid(x) as torch computes it, within 3 ulp for x >= -87.
REPRISE_INLINE float silu_f(float x) { return x / (1.0f + exp_f(-x)); }

// log(1 + x) for x >= 0, within 1 ulp; NaN stays NaN.
REPRISE_INLINE float log1p_f(float x) {
  const float u = 1.0f + x;
  const float lost = (x - (u - 1.0f)) / u;  // what the sum rounded away, as a change of the logarithm
  // u = 2^k m, m in [sqrt(1/2), sqrt(2)); log m by FreeBSD's logf.
  const uint32_t bits = std::bit_cast<uint32_t>(u) + (0x3F800000u - 0x3F3504F3u);
  const float k = static_cast<float>(static_cast<int32_t>(bits >> 23) - 127);
  const float f = std::bit_cast<float>((bits & 0x007FFFFFu) + 0x3F3504F3u) - 1.0f;
  const float s = f / (2.0f + f);
  const float z = s * s;
  const float w = z * z;
  const float r = z * (0.66666662693f + w * 0.28498786688f) + w * (0.40000972152f + w * 0.24279078841f);
  const float half_square = 0.5f * f * f;
  const float low = s * (half_square + r) + k * 9.0580006145e-6f + lost;
  const float result = ((low - half_square) + f) + k * 6.9313812256e-1f;
  return choose(x > std::numeric_limits<float>::max(), x, result);
}

// log(1 + e^x) within 2 ulp; x itself past 20, as in torch.
REPRISE_INLINE float softplus_f(float x) { return choose(x > 20.0f, x, log1p_f(exp_f(x))); }

REPRISE_INLINE float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// Nearest bfloat16, ties to even; every NaN becomes 0x7FC0, as in torch.
REPRISE_INLINE uint16_t float_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded);
}

// Arrays of n values; Bf16 is uint16_t or c10::BFloat16. `in` and `out` do not overlap.
template <class Bf16>
REPRISE_INLINE void bf16_to_float(const Bf16* __restrict in, float* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = bf16_to_float(std::bit_cast<uint16_t>(in[i]));
}

template <class Bf16>
REPRISE_INLINE void float_to_bf16(const float* __restrict in, Bf16* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = std::bit_cast<Bf16>(float_to_bf16(in[i]));
}

}  // namespace reprise::cpu
