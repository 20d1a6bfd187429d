// cuda_bf16: bf16 on the host; NaN is not rounded.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>

struct __nv_bfloat16 {
  uint16_t bits;
};
struct __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline __nv_bfloat16 __float2bfloat16_rn(float v) {
  const uint32_t bits = __float_as_uint(v);
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16)};
}
inline float __bfloat162float(__nv_bfloat16 v) { return __uint_as_float(uint32_t{v.bits} << 16); }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {__float2bfloat16_rn(a), __float2bfloat16_rn(b)}; }
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(uint16_t bits) { return {bits}; }
inline __nv_bfloat16 __float2bfloat16(float v) { return __float2bfloat16_rn(v); }
inline float __low2float(__nv_bfloat162 v) { return __bfloat162float(v.x); }
inline float __high2float(__nv_bfloat162 v) { return __bfloat162float(v.y); }
inline __nv_bfloat162 __float2bfloat162_rn(float v) { return __floats2bfloat162_rn(v, v); }
// Rounds to nearest even, once.
inline __nv_bfloat16 emulated_bf16(double x) {
  if (x == 0 || !std::isfinite(x)) return __float2bfloat16_rn(static_cast<float>(x));
  const double step = std::ldexp(1.0, std::max(std::ilogb(x), -126) - 7);
  return __float2bfloat16_rn(static_cast<float>(std::nearbyint(x / step) * step));
}
inline __nv_bfloat16 emulated_fma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
  return emulated_bf16(static_cast<double>(__bfloat162float(a)) * static_cast<double>(__bfloat162float(b)) +
                       static_cast<double>(__bfloat162float(c)));
}
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
  return {emulated_fma(a.x, b.x, c.x), emulated_fma(a.y, b.y, c.y)};
}
inline __nv_bfloat162 __hmul2(__nv_bfloat162 a, __nv_bfloat162 b) { return __hfma2(a, b, {{0x8000}, {0x8000}}); }
inline __nv_bfloat162 __hsub2(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __floats2bfloat162_rn(__bfloat162float(a.x) - __bfloat162float(b.x), __bfloat162float(a.y) - __bfloat162float(b.y));
}
