// f8: E4M3, the elements of an 8-bit cache: a sign, four bits of exponent with bias 7, three of mantissa; values up to
// 448, steps of 2^-9 below 2^-6, no infinity.
//
// A head of a token has one scale. Keys and values are written by f8_scale and f8_from_f32 in this order:
//   1. greatest = the largest |x| of the head, an f32 after bias, norm and rotation.
//   2. scale = greatest / 448, rounded to nearest even, and at least 2^-126, so that no quotient overflows; 1 if
//      greatest is 0. If any x is NaN or infinite the scale is NaN and every element 0, so that each row that sees the
//      token fails as NaN.
//   3. element = x / scale, rounded to f32, then to E4M3; to nearest even both times.
// They are read exactly, by widen_f8, and the scale multiplies the f32 results of matrix products. Prompts by wgmma round elements times
// their scales instead (attention/prefill_widen.cuh).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "kernels/types.h"

namespace mr::cuda {

__host__ __device__ inline uint32_t f8_word(float x) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(x);
#else
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
#endif
}
__host__ __device__ inline float f8_float(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
#endif
}

// Returns |x| as a word that orders like the number; infinity is 0x7f800000, and NaN is above it.
__host__ __device__ inline uint32_t f8_size(float x) { return f8_word(x) & 0x7fffffffu; }

// Returns the scale of a head whose largest f8_size is `greatest`.
__host__ __device__ inline float f8_scale(uint32_t greatest) {
  if (greatest >= 0x7f800000u) return f8_float(0x7fc00000u);
  if (greatest == 0) return 1.0f;
  const float scale = f8_float(greatest) / 448.0f;
  return scale < 0x1p-126f ? 0x1p-126f : scale;
}

// Returns x / scale as the nearest E4M3, ties to even mantissas; beyond 448 it is 448. Returns 0 if the scale is NaN.
__host__ __device__ inline uint32_t f8_from_f32(float x, float scale) {
  if (scale != scale) return 0;
  const uint32_t bits = f8_word(x / scale), sign = bits >> 24 & 0x80u, size = bits & 0x7fffffffu;
  if (size < 0x3c800000u)  // below 2^-6: adding 2^14 rounds to a multiple of 2^-9
    return sign | (f8_word(f8_float(size) + 16384.0f) - f8_word(16384.0f));
  const uint32_t rounded = ((size + 0x7ffffu + (size >> 20 & 1u)) >> 20) - (120u << 3);
  return sign | (rounded > 0x7eu ? 0x7eu : rounded);
}

// Returns the value of an element, which is never NaN.
__host__ __device__ inline float f8_to_f32(uint32_t element) {
  const float x = f8_float((element & 0x80u) << 24 | (element & 0x7fu) << 20);  // 2^-120 of it, possibly subnormal
  return x * 0x1p120f;
}

#ifdef __CUDACC__
// WideF8 widens elements to the activation type, exactly up to a factor of the type, which is a power of two.
template <class T>
struct WideF8;

template <>
struct WideF8<__half> {
  // Moving the bits into place gives 2^-8 of the value; the scale corrects it.
  static constexpr float kFactor = 256.0f;
  // Two elements in the upper bytes of the halves of x.
  static __device__ __forceinline__ uint32_t pair(uint32_t x) { return (x & 0x80008000u) | (x >> 1 & 0x3f803f80u); }
};

template <>
struct WideF8<__nv_bfloat16> {
  static constexpr float kFactor = 1.0f;
  // Moving the bits into place gives 2^-120 of the value; it is multiplied by 2^120, minus 0.
  static __device__ __forceinline__ uint32_t pair(uint32_t x) {
    const uint32_t small = (x & 0x80008000u) | (x >> 4 & 0x07f007f0u);
    uint32_t y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(small), "r"(0x7b807b80u), "r"(0x80008000u));
    return y;
  }
};

// Widens 8, or 16, neighbouring elements.
template <class T>
__device__ __forceinline__ uint4 widen_f8(uint32_t low, uint32_t high) {
  return make_uint4(WideF8<T>::pair(__byte_perm(low, 0, 0x1404)), WideF8<T>::pair(__byte_perm(low, 0, 0x3424)),
                    WideF8<T>::pair(__byte_perm(high, 0, 0x1404)), WideF8<T>::pair(__byte_perm(high, 0, 0x3424)));
}
template <class T>
__device__ __forceinline__ void widen_f8(const uint4& from, uint4 (&to)[2]) {
  to[0] = widen_f8<T>(from.x, from.y);
  to[1] = widen_f8<T>(from.z, from.w);
}
#endif

}  // namespace mr::cuda
