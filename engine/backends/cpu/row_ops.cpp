#include "backends/cpu/row_ops.h"

#include <cmath>
#include <cstring>

#include "backends/cpu/targets.h"
#include "backends/cpu/vector_math.h"

namespace reprise::cpu {

namespace {

constexpr int kLanes = 16;

// Adds the lanes pairwise in one fixed order.
REPRISE_INLINE float add_lanes(float* lanes) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

REPRISE_CLONES void widen(const uint16_t* source, float* target, int64_t n) { bf16_to_float(source, target, n); }
REPRISE_CLONES void narrow(const float* source, uint16_t* target, int64_t n) { float_to_bf16(source, target, n); }

}  // namespace

void load_row(const void* source, c10::ScalarType dtype, float* target, int64_t n) {
  if (dtype == c10::ScalarType::Float) {
    std::memcpy(target, source, static_cast<size_t>(n) * sizeof(float));
  } else {
    widen(static_cast<const uint16_t*>(source), target, n);
  }
}

void store_row(const float* source, void* target, c10::ScalarType dtype, int64_t n) {
  if (dtype == c10::ScalarType::Float) {
    std::memcpy(target, source, static_cast<size_t>(n) * sizeof(float));
  } else {
    narrow(source, static_cast<uint16_t*>(target), n);
  }
}

REPRISE_CLONES float sum_of_squares(const float* x, int64_t n) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += x[i + j] * x[i + j];
  }
  for (int j = 0; i + j < n; ++j) lanes[j] += x[i + j] * x[i + j];
  return add_lanes(lanes);
}

REPRISE_CLONES float dot(const float* x, const float* y, int64_t n) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += x[i + j] * y[i + j];
  }
  for (int j = 0; i + j < n; ++j) lanes[j] += x[i + j] * y[i + j];
  return add_lanes(lanes);
}

REPRISE_CLONES void add_scaled(float a, const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += a * x[i];
}

REPRISE_CLONES void scale(float a, const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = a * x[i];
}

REPRISE_CLONES void scale_by_weight(float a, const float* x, const float* w, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = w[i] * (x[i] * a);
}

void rms_norm(const float* x, const float* w, float eps, float* y, int64_t n) {
  const float mean = sum_of_squares(x, n) / static_cast<float>(n);
  scale_by_weight(1.0f / std::sqrt(mean + eps), x, w, y, n);
}

void rotate(float* row, int64_t n, const float* cos, const float* sin, int64_t half, bool inverse) {
  float* pairs = row + n - 2 * half;
  for (int64_t j = 0; j < half; ++j) {
    const float s = inverse ? -sin[j] : sin[j];
    const float a = pairs[2 * j];
    const float b = pairs[2 * j + 1];
    pairs[2 * j] = a * cos[j] - b * s;
    pairs[2 * j + 1] = a * s + b * cos[j];
  }
}

REPRISE_CLONES void clamped_swiglu(const float* gate, const float* up, float limit, float* h, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = gate[i] < limit ? gate[i] : limit;
    const float u = up[i] < -limit ? -limit : (up[i] > limit ? limit : up[i]);
    h[i] = silu_f(g) * u;
  }
}

}  // namespace reprise::cpu
