// vecops_simd: the vectors of one path. Included once by each file that defines MR_VEC_WIDTH (16, 8 or 4 floats); every
// name is local to that file, so that code for different paths never mixes.
#pragma once

#include <stdint.h>

#if MR_VEC_WIDTH >= 8
#include <immintrin.h>
#else
#include "half.h"
#endif

namespace mr::cpu {
namespace {

constexpr int W = MR_VEC_WIDTH;
typedef float VF __attribute__((vector_size(4 * MR_VEC_WIDTH)));
typedef int32_t VI __attribute__((vector_size(4 * MR_VEC_WIDTH)));
typedef uint32_t VU __attribute__((vector_size(4 * MR_VEC_WIDTH)));
typedef float VFMemory __attribute__((vector_size(4 * MR_VEC_WIDTH), aligned(4), may_alias));
typedef uint16_t VHMemory __attribute__((vector_size(2 * MR_VEC_WIDTH), aligned(2), may_alias));
typedef uint16_t VH __attribute__((vector_size(2 * MR_VEC_WIDTH)));
// Half as many doubles, and the floats they come from.
typedef double VD __attribute__((vector_size(4 * MR_VEC_WIDTH)));
typedef uint64_t VL __attribute__((vector_size(4 * MR_VEC_WIDTH)));
typedef float VFHalf __attribute__((vector_size(2 * MR_VEC_WIDTH)));
typedef float VFHalfMemory __attribute__((vector_size(2 * MR_VEC_WIDTH), aligned(4), may_alias));

#define MR_INLINE inline __attribute__((always_inline))

MR_INLINE VF load(const float* p) { return *reinterpret_cast<const VFMemory *>(p); }
MR_INLINE void store(float* p, VF v) { *reinterpret_cast<VFMemory *>(p) = v; }
MR_INLINE VF splat(float s) { return s - VF{}; }
MR_INLINE VI splat_int(int32_t s) { return s - VI{}; }
MR_INLINE VD splat_double(double s) { return s - VD{}; }

// The first n < W floats, the other lanes `rest`.
MR_INLINE VF load_some(const float* p, int64_t n, float rest) {
  float lanes[W];
  for (int i = 0; i < W; ++i) lanes[i] = i < n ? p[i] : rest;
  return load(lanes);
}
MR_INLINE void store_some(float* p, int64_t n, VF v) {
  for (int i = 0; i < n; ++i) p[i] = v[i];
}

// a * b + c: fused where the path has it, else rounded twice.
MR_INLINE VF fma(VF a, VF b, VF c) {
#if MR_VEC_WIDTH == 16
  return _mm512_fmadd_ps(a, b, c);
#elif MR_VEC_WIDTH == 8
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

MR_INLINE VF choose(VI condition, VF yes, VF no) { return condition ? yes : no; }
MR_INLINE VF greater_of(VF a, VF b) { return choose(a > b, a, b); }  // b when either is NaN

// Any lane of a comparison's result.
MR_INLINE bool any(VI condition) {
#if MR_VEC_WIDTH == 16
  return _mm512_movepi32_mask((__m512i)condition) != 0;
#elif MR_VEC_WIDTH == 8
  return _mm256_movemask_epi8((__m256i)condition) != 0;
#else
  return (condition[0] | condition[1] | condition[2] | condition[3]) != 0;
#endif
}

// Lanes are folded in halves: lane i with lane i + W/2, and so on.
MR_INLINE float fold_sum(VF v) {
  float lanes[W];
  store(lanes, v);
  for (int half = W / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}
MR_INLINE float fold_max(VF v) {
  float lanes[W];
  store(lanes, v);
  float top = lanes[0];
  for (int i = 1; i < W; ++i) top = lanes[i] > top ? lanes[i] : top;
  return top;
}
MR_INLINE double fold_sum(VD v) {
  double sum = v[0];
  for (int i = 1; i < W / 2; ++i) sum += v[i];
  return sum;
}
MR_INLINE uint64_t fold_sum(VL v) {
  uint64_t sum = 0;
  for (int i = 0; i < W / 2; ++i) sum += v[i];
  return sum;
}

MR_INLINE VD widen(const float* p) {
  return __builtin_convertvector(*reinterpret_cast<const VFHalfMemory *>(p), VD);
}

// e^x, at most 1.01 ulp: x = n ln 2 + f, a Taylor series to f^7, then 2^n in two steps. Below -87.3, where results near
// the smallest normal number, 0; so no result is subnormal.
MR_INLINE VF exp(VF x) {
  const VF magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const VF t = fma(x, splat(1.44269504f), magic);
  const VF n = t - magic;
  const VI ni = (VI)((VU)t - (VU)magic);
  VF f = fma(n, splat(-0.693359375f), x);
  f = fma(n, splat(2.12194440e-4f), f);
  VF p = splat(1.0f / 5040);
  p = fma(p, f, splat(1.0f / 720));
  p = fma(p, f, splat(1.0f / 120));
  p = fma(p, f, splat(1.0f / 24));
  p = fma(p, f, splat(1.0f / 6));
  p = fma(p, f, splat(0.5f));
  p = fma(p, f * f, f) + 1.0f;
  const VI first = ni >> 1, second = ni - first;
  p = p * (VF)((first + 127) << 23) * (VF)((second + 127) << 23);
  p = choose(x > splat(88.72284f), splat(__builtin_inff()), p);
  return choose(x < splat(-87.3f), VF{}, p);
}

// limit * tanh(x / limit) as limit * (1 - 2 / (1 + exp(2 x / limit))).
MR_INLINE VF cap_of(VF x, float limit, float inverse) {
  return splat(limit) * (1.0f - 2.0f / (1.0f + exp(2.0f * inverse * x)));
}

// Storage formats of the cache: load W values as floats, store one.
struct StoredF32 {
  typedef float Element;
  static MR_INLINE VF load(const uint8_t* p) { return mr::cpu::load(reinterpret_cast<const float *>(p)); }
  static MR_INLINE void store(uint8_t* p, VF v) { mr::cpu::store(reinterpret_cast<float *>(p), v); }
};

struct StoredBF16 {
  typedef uint16_t Element;
  static MR_INLINE VF load(const uint8_t* p) {
    const VH h = *reinterpret_cast<const VHMemory *>(p);
    return (VF)(__builtin_convertvector(h, VU) << 16);
  }
  static MR_INLINE void store(uint8_t* p, VF v) {  // nearest even; NaN stays NaN
    const VU bits = (VU)v;
    const VU rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const VU quiet = (bits >> 16) | 0x40u;
    const VU chosen = (v == v) ? rounded : quiet;
    *reinterpret_cast<VHMemory *>(p) = __builtin_convertvector(chosen, VH);
  }
};

struct StoredF16 {
  typedef uint16_t Element;
  static MR_INLINE VF load(const uint8_t* p) {
#if MR_VEC_WIDTH == 16
    return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
#elif MR_VEC_WIDTH == 8
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
#else
    const VH h = *reinterpret_cast<const VHMemory *>(p);
    return VF{half_to_float(h[0]), half_to_float(h[1]), half_to_float(h[2]), half_to_float(h[3])};
#endif
  }
  static MR_INLINE void store(uint8_t* p, VF v) {  // nearest even
#if MR_VEC_WIDTH == 16
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), _mm512_maskz_cvtps_ph(0xffff, v, _MM_FROUND_TO_NEAREST_INT));
#elif MR_VEC_WIDTH == 8
    _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#else
    VHMemory* out = reinterpret_cast<VHMemory *>(p);
    *out = VH{float_to_half(v[0]), float_to_half(v[1]), float_to_half(v[2]), float_to_half(v[3])};
#endif
  }
};

}  // namespace
}  // namespace mr::cpu
