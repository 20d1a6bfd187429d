// cuda_fp16: f16 on the host.
#pragma once

#include <cuda_runtime.h>

#include "cpu/half.h"

struct __half {
  uint16_t bits;
};

struct __half2 {
  __half x, y;
};

inline float __half2float(__half h) { return mr::half_to_float(h.bits); }
inline __half __float2half_rn(float v) { return {mr::float_to_half(v)}; }
inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
inline uint16_t __half_as_ushort(__half h) { return h.bits; }
inline __half2 __floats2half2_rn(float a, float b) { return {__float2half_rn(a), __float2half_rn(b)}; }
inline __half __float2half(float v) { return __float2half_rn(v); }
inline float2 __half22float2(__half2 v) { return {__half2float(v.x), __half2float(v.y)}; }
inline __half2 __float2half2_rn(float v) { return __floats2half2_rn(v, v); }

// A double to the nearest f16, with one rounding.
inline __half emulated_half(double v) {
  int exponent = 0;
  frexp(v, &exponent);
  const double step = ldexp(1, max(exponent - 11, -24));
  return __float2half_rn(static_cast<float>(nearbyint(v / step) * step));
}
inline __half2 __hsub2(__half2 a, __half2 b) {
  return __floats2half2_rn(__half2float(a.x) - __half2float(b.x), __half2float(a.y) - __half2float(b.y));
}
inline __half emulated_fma(__half a, __half b, __half c) {
  return emulated_half(static_cast<double>(__half2float(a)) * static_cast<double>(__half2float(b)) + static_cast<double>(__half2float(c)));
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return {emulated_fma(a.x, b.x, c.x), emulated_fma(a.y, b.y, c.y)}; }
inline __half2 __hmul2(__half2 a, __half2 b) { return __hfma2(a, b, __half2{}); }
