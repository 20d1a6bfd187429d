// activation: x / (1 + e^-u) for several numbers at once, with u = x for SiLU and u = gelu_argument(x) for GELU.
#pragma once

#include <cstdint>

#include "kernels/instructions.cuh"

namespace mr::cuda {

// 2 sqrt(2/pi) (x + 0.044715 x^3): x / (1 + e^-this) is GELU in its tanh form (Hendrycks and Gimpel, 2016).
__device__ __forceinline__ float gelu_argument(float x) { return 1.59576912f * fmaf(0.044715f * x * x, x, x); }

// Replaces each x by x / (1.0f + expf(-u)), with the rounding of this expression. |x| must not exceed |u|.
//
// A division checks whether its operands need the slow path, and a thread that may branch does one division after
// another. Here all operands are checked together, so that the divisions overlap. The fast path corrects the quotient
// by a reciprocal with two Newton steps, which round correctly as long as nothing is too small or too large: that is
// the purpose of the limits below.
template <int32_t n>
__device__ __forceinline__ void activate_each(float (&x)[n], const float (&u)[n]) {
  float y[n];
  bool plain = true;
#pragma unroll
  for (int32_t i = 0; i < n; ++i) {
    const float d = 1.0f + expf(-u[i]);
    plain = plain && fabsf(x[i]) >= 0x1p-60f && fabsf(u[i]) <= 80.0f;
    float r = reciprocal_near(d);
    r = fmaf(r, fmaf(-d, r, 1.0f), r);
    const float q = x[i] * r, near = fmaf(r, fmaf(-d, q, x[i]), q);
    y[i] = fmaf(r, fmaf(-d, near, x[i]), near);
  }
#pragma unroll
  for (int32_t i = 0; i < n; ++i) {
    if (!plain) y[i] = x[i] / (1.0f + expf(-u[i]));
    x[i] = y[i];
  }
}

// The same for SiLU or GELU of x.
template <int32_t n>
__device__ __forceinline__ void activate_each(float (&x)[n], bool gelu) {
  float u[n];
#pragma unroll
  for (int32_t i = 0; i < n; ++i) u[i] = gelu ? gelu_argument(x[i]) : x[i];
  activate_each(x, u);
}

}  // namespace mr::cuda
