#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

// Row kernels on float rows. A row's result depends on that row alone: reductions run over 16 fixed lanes that are
// added in one fixed order, so that batching and chunking cannot change a bit.
namespace reprise::cpu {

// Widens n values of float32 or bfloat16 to float.
void load_row(const void* source, c10::ScalarType dtype, float* target, int64_t n);
// Rounds n floats to float32 or bfloat16 (nearest even).
void store_row(const float* source, void* target, c10::ScalarType dtype, int64_t n);

float sum_of_squares(const float* x, int64_t n);
float dot(const float* x, const float* y, int64_t n);
// y += a * x
void add_scaled(float a, const float* x, float* y, int64_t n);
// y = a * x
void scale(float a, const float* x, float* y, int64_t n);
// y = w * (x * rsqrt(mean(x^2) + eps)); y may be x.
void rms_norm(const float* x, const float* w, float eps, float* y, int64_t n);
// Rotates adjacent pairs of the last 2 * half channels of an n-channel row by the angles; `inverse` rotates back.
void rotate(float* row, int64_t n, const float* cos, const float* sin, int64_t half, bool inverse);
// h = silu(min(gate, limit)) * clamp(up, -limit, limit)
void clamped_swiglu(const float* gate, const float* up, float limit, float* h, int64_t n);

}  // namespace reprise::cpu
