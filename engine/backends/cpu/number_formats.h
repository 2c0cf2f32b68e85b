#pragma once

#include <bit>
#include <cstdint>

#include "backends/cpu/targets.h"

// The released cache formats: quantize then dequantize, on fp32 rows (bf16 rows are widened first; results fit bf16).
// Branch-free, so that callers built for AVX-512 vectorize them, and bitwise the same on every instruction set.
// Wants round-to-nearest, no fast-math, and -ffp-contract=off.

namespace reprise::cpu {

constexpr int64_t kFp8Group = 32;
constexpr int64_t kMxfp4Group = 32;
constexpr int64_t kNvfp4Group = 16;
constexpr float kE4m3Max = 448.0f;
constexpr float kE2m1Max = 6.0f;

namespace formats {

constexpr uint32_t kAbsMask = 0x7FFFFFFFu;
constexpr uint32_t kInfBits = 0x7F800000u;

// Nearest value with kMantissaBits after the leading one and no exponent below kMinExponent (subnormals), ties to even,
// clamped to +-max. The sign of zero and NaN are kept.
template <int kMantissaBits, int kMinExponent>
REPRISE_INLINE float round_to(float x, float max) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  float magnitude = std::bit_cast<float>(bits & kAbsMask);
  magnitude = magnitude > max ? max : magnitude;
  // Adding 2^23 steps leaves no room for bits below one step; an even multiple, so ties still go to even.
  constexpr uint32_t kMinExponentBits = static_cast<uint32_t>(kMinExponent + 127) << 23;
  uint32_t exponent_bits = std::bit_cast<uint32_t>(magnitude) & kInfBits;
  exponent_bits = exponent_bits < kMinExponentBits ? kMinExponentBits : exponent_bits;
  const float shifter = std::bit_cast<float>(exponent_bits + (static_cast<uint32_t>(23 - kMantissaBits) << 23));
  const float rounded = (magnitude + shifter) - shifter;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(rounded) | (bits & ~kAbsMask));
}

// Largest magnitude of a group, found on the bit patterns: integer order is magnitude order, and NaN beats all numbers.
template <int64_t kGroup>
REPRISE_INLINE float abs_max(const float* group) {
  int32_t largest = 0;
  for (int64_t i = 0; i < kGroup; ++i) {
    const int32_t bits = static_cast<int32_t>(std::bit_cast<uint32_t>(group[i]) & kAbsMask);
    largest = bits > largest ? bits : largest;
  }
  return std::bit_cast<float>(largest);
}

// 2^ceil(log2 x) of a normal x > 0; infinity for infinity and NaN, which makes a group with either all NaN.
REPRISE_INLINE float power_of_two_ceil(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  bits = bits > kInfBits ? kInfBits : bits;
  return std::bit_cast<float>((bits + 0x007FFFFFu) & kInfBits);
}

}  // namespace formats

// Nearest E4M3 value (as in float8_e4m3fn), ties to even, saturating at +-448; NaN stays NaN.
REPRISE_INLINE float round_to_e4m3(float x) { return formats::round_to<3, -6>(x, kE4m3Max); }

// Nearest of 0 .5 1 1.5 2 3 4 6 with x's sign, ties to the even code, saturating at +-6; NaN stays NaN.
REPRISE_INLINE float round_to_e2m1(float x) { return formats::round_to<1, 0>(x, kE2m1Max); }

// Each qdq_* works in place on n values, n a multiple of its group. A group that holds NaN or infinity becomes all NaN.

// Groups of 32, power-of-two scale, E4M3.
REPRISE_INLINE void qdq_fp8(float* row, int64_t n) {
  for (int64_t start = 0; start < n; start += kFp8Group) {
    float* group = row + start;
    float largest = formats::abs_max<kFp8Group>(group);
    largest = largest < 1e-4f ? 1e-4f : largest;
    const float scale = formats::power_of_two_ceil(largest * (1.0f / kE4m3Max));
    const float inverse = 1.0f / scale;  // exact: a power of two
    for (int64_t i = 0; i < kFp8Group; ++i) group[i] = round_to_e4m3(group[i] * inverse) * scale;
  }
}

// Groups of 32, power-of-two scale, E2M1.
REPRISE_INLINE void qdq_mxfp4(float* row, int64_t n) {
  for (int64_t start = 0; start < n; start += kMxfp4Group) {
    float* group = row + start;
    float largest = formats::abs_max<kMxfp4Group>(group);
    largest = largest < 0x1.8p-124f ? 0x1.8p-124f : largest;  // 6 * 2^-126
    const float scale = formats::power_of_two_ceil(largest * (1.0f / kE2m1Max));
    const float inverse = 1.0f / scale;  // exact: a power of two
    for (int64_t i = 0; i < kMxfp4Group; ++i) group[i] = round_to_e2m1(group[i] * inverse) * scale;
  }
}

// Groups of 16, E4M3 scale (at most 448, so values beyond 2688 saturate), E2M1.
REPRISE_INLINE void qdq_nvfp4(float* row, int64_t n) {
  for (int64_t start = 0; start < n; start += kNvfp4Group) {
    float* group = row + start;
    float largest = formats::abs_max<kNvfp4Group>(group);
    largest = largest < 0x1.8p-7f ? 0x1.8p-7f : largest;  // 6 * 2^-9: the scale is at least E4M3's smallest
    // Infinity would saturate to a finite scale; infinity minus itself is NaN, zero for every number.
    const float scale = round_to_e4m3(largest / kE2m1Max) + (largest - largest);
    for (int64_t i = 0; i < kNvfp4Group; ++i) group[i] = round_to_e2m1(group[i] / scale) * scale;
  }
}

}  // namespace reprise::cpu
