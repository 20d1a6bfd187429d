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
inline __half2 __hsub2(__half2 a, __half2 b) {
  return __floats2half2_rn(__half2float(a.x) - __half2float(b.x), __half2float(a.y) - __half2float(b.y));
}
inline __half2 __hmul2(__half2 a, __half2 b) {
  return __floats2half2_rn(__half2float(a.x) * __half2float(b.x), __half2float(a.y) * __half2float(b.y));
}
