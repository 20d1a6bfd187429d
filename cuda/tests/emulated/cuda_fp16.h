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

// The exponent's bias is that of a float after the multiplication, which is exact. Always inlined, because tests spend much of
// their time here.
__attribute__((always_inline)) inline float __half2float(__half h) {
  const float v = emulated_bits<float>(uint32_t{h.bits & 0x7fffu} << 13) * 0x1p112f;
  const uint32_t special = (h.bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0;
  return emulated_bits<float>(emulated_bits<uint32_t>(v) | special | uint32_t{h.bits & 0x8000u} << 16);
}
inline __half __float2half_rn(float v) { return {mr::float_to_half(v)}; }
inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
inline uint16_t __half_as_ushort(__half h) { return h.bits; }
inline __half2 __floats2half2_rn(float a, float b) { return {__float2half_rn(a), __float2half_rn(b)}; }
inline __half __float2half(float v) { return __float2half_rn(v); }
inline float2 __half22float2(__half2 v) { return {__half2float(v.x), __half2float(v.y)}; }
inline __half2 __float2half2_rn(float v) { return __floats2half2_rn(v, v); }

// A double to the nearest f16, with one rounding: the sum with a number whose last bit is worth a step of v's f16 is rounded to it.
inline __half emulated_half(double v) {
  const int exponent = static_cast<int>(emulated_bits<uint64_t>(v) >> 52 & 0x7ff) - 1022;  // of frexp
  if (exponent > 20) return __float2half_rn(static_cast<float>(v));                         // infinite, or not a number
  const double steps = 1.5 * emulated_bits<double>(static_cast<uint64_t>(max(exponent - 11, -24) + 52 + 1023) << 52);
  return __float2half_rn(static_cast<float>(copysign(v + steps - steps, v)));
}
inline __half2 __hsub2(__half2 a, __half2 b) {
  return __floats2half2_rn(__half2float(a.x) - __half2float(b.x), __half2float(a.y) - __half2float(b.y));
}
inline __half emulated_fma(__half a, __half b, __half c) {
  return emulated_half(static_cast<double>(__half2float(a)) * static_cast<double>(__half2float(b)) + static_cast<double>(__half2float(c)));
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return {emulated_fma(a.x, b.x, c.x), emulated_fma(a.y, b.y, c.y)}; }
// A float holds the product of two f16 without rounding.
inline __half2 __hmul2(__half2 a, __half2 b) {
  return __floats2half2_rn(__half2float(a.x) * __half2float(b.x), __half2float(a.y) * __half2float(b.y));
}
