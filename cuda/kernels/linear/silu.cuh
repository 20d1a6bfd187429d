// silu: x / (1 + e^-x) of several numbers.
#pragma once

#include <cstdint>

namespace mr::cuda {

// 1 / x, within 1 ulp.
__device__ __forceinline__ float reciprocal_near(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Each x becomes x / (1.0f + expf(-x)), rounded as this expression is.
//
// A division asks of its numbers whether they need the long way, and a thread that may branch does one after another. Here they are asked
// together, so that divisions overlap. The short way is the quotient of a reciprocal that two steps of Newton's correct: rounded rightly
// where nothing in it is too small or too large, as it is between the limits below.
template <int32_t n>
__device__ __forceinline__ void silu_each(float (&x)[n]) {
  float y[n];
  bool plain = true;
#pragma unroll
  for (int32_t i = 0; i < n; ++i) {
    const float size = fabsf(x[i]), d = 1.0f + expf(-x[i]);
    plain = plain && size >= 0x1p-60f && size <= 80.0f;
    float r = reciprocal_near(d);
    r = fmaf(r, fmaf(-d, r, 1.0f), r);
    const float q = x[i] * r, near = fmaf(r, fmaf(-d, q, x[i]), q);
    y[i] = fmaf(r, fmaf(-d, near, x[i]), near);
  }
#pragma unroll
  for (int32_t i = 0; i < n; ++i) {
    if (!plain) y[i] = x[i] / (1.0f + expf(-x[i]));
    x[i] = y[i];
  }
}

}  // namespace mr::cuda
