// Products on AVX2 with FMA and F16C: a panel as two halves of 8 rows.
#if defined(__x86_64__)

#pragma GCC optimize("O2") // unrolling is spelled out; more of it only takes the compiler longer
#pragma GCC optimize("fp-contract=off")
#pragma GCC target("avx2,fma,f16c")

#include <immintrin.h>
#include <stdint.h>

#include "linear_format.h"
#include "linear_kernels.h"

namespace mr::cpu {

namespace {

#include "linear_vector.inl"

constexpr bool high_scaled = false; // 240 * 127 * 2 would saturate 16 bits

MR_INLINE __m128i load_128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

MR_INLINE f32x16 join(__m256 a, __m256 b) {
  f32x16 v;
  __builtin_memcpy(&v, &a, 32);
  __builtin_memcpy(reinterpret_cast<char*>(&v) + 32, &b, 32);
  return v;
}

MR_INLINE int32_t store_bytes(int8_t* p, const i32x16& v) {
  __m256i a, b;
  __builtin_memcpy(&a, &v, 32);
  __builtin_memcpy(&b, reinterpret_cast<const char*>(&v) + 32, 32);
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  return tree_sum<i32x16, i32x8>(v);
}

MR_INLINE f32x16 half16(const uint8_t* p) { return join(_mm256_cvtph_ps(load_128(p)), _mm256_cvtph_ps(load_128(p + 16))); }

MR_INLINE f32x16 bytes16(const uint8_t* p) {
  const __m128i v = load_128(p);
  return join(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(v)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(v, 8))));
}

MR_INLINE f32x16 signed16(const uint8_t* p) {
  const __m128i v = load_128(p);
  return join(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))));
}

MR_INLINE u8x64 table16(const u8x64& index) {
  const __m256i table = _mm256_broadcastsi128_si256(_mm_add_epi8(load_128(iq4_nl_values), _mm_set1_epi8(-128)));
  __m256i half[2];
  __builtin_memcpy(half, &index, 64);
  half[0] = _mm256_shuffle_epi8(table, half[0]);
  half[1] = _mm256_shuffle_epi8(table, half[1]);
  u8x64 v;
  __builtin_memcpy(&v, half, 64);
  return v;
}

#include "linear_prepare.inl"
#include "linear_expand.inl"
#include "linear_dot.inl"

MR_INLINE int64_t wide_int8(int64_t) { return 1; }
MR_INLINE int64_t wide_f32(int64_t) { return 1; }
MR_INLINE bool nibbles_as_they_lie(int64_t) { return false; }

// Writes 8 sums of rows 8*half.. of a panel: to the waiting sums, or the rows that exist to y.
MR_INLINE void store_half(const Dot& a, int64_t c, int half, __m256 v) {
  if (!a.last) return _mm256_store_ps(a.sums[0] + c * panel_rows + 8 * half, v);
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, v);
  float* y = a.y[0] + c * a.ldy + 8 * half;
  for (int64_t r = 0; r < min_of(8, a.rows[0] - 8 * half); ++r) y[r] = lanes[r];
}

MR_INLINE __m256 load_half(const Dot& a, int64_t c, int half) {
  return a.first ? _mm256_setzero_ps() : _mm256_load_ps(a.sums[0] + c * panel_rows + 8 * half);
}

// Four products of each of 8 rows. vpmaddubsw adds two of them in 16 bits, which saturates: weights of up to 6 bits stay
// below 63 * 127 * 2, and full bytes are taken as magnitudes, 128 * 127 * 2, with their signs moved to x.
template <bool full>
MR_INLINE __m256i products(__m256i w, __m256i x) {
  if constexpr (full) {
    x = _mm256_sign_epi8(x, w);
    w = _mm256_abs_epi8(w);
  }
  return _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1));
}

template <Mode mode, bool full>
__attribute__((noinline)) void dot_int8_tile(int64_t width, const Dot& a) {
  constexpr int parts = mode == Mode::halves ? 2 : 1, steps = 8 / parts;
  for (int half = 0; half < 2; ++half) {
    __m256 sum[int8_tile];
    for (int64_t c = 0; c < width; ++c) sum[c] = load_half(a, c, half);
    for (int64_t b = 0; b < a.n; ++b) {
      for (int part = 0; part < parts; ++part) {
        __m256i w[steps];
#pragma GCC unroll 8
        for (int g = 0; g < steps; ++g) {
          const uint8_t* at = a.w[0] + b * 512 + (part * steps + g) * 64 + half * 32;
          w[g] = _mm256_load_si256(reinterpret_cast<const __m256i*>(at));
          if constexpr (full) w[g] = _mm256_xor_si256(w[g], _mm256_set1_epi8(-128));
        }
        const __m256 scale = _mm256_load_ps(a.d[0] + (b * parts + part) * panel_rows + 8 * half);
        for (int64_t c = 0; c < width; ++c) {
          const uint8_t* act = a.act + (b * width + c) * int64_t(sizeof(ActBlock));
          __m256i dot = full ? _mm256_setzero_si256() : _mm256_set1_epi32(load_as<int32_t>(act + a.bias + part * 4));
#pragma GCC unroll 8
          for (int g = 0; g < steps; ++g) {
            dot = _mm256_add_epi32(dot, products<full>(w[g], _mm256_set1_epi32(load_as<int32_t>(act + (part * steps + g) * 4))));
          }
          const __m256 both = _mm256_mul_ps(scale, _mm256_set1_ps(load_as<float>(act + __builtin_offsetof(ActBlock, d))));
          sum[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), both, sum[c]);
          if constexpr (mode == Mode::mins) {
            const __m256 least = _mm256_load_ps(a.m[0] + b * panel_rows + 8 * half);
            sum[c] = _mm256_fmadd_ps(least, _mm256_set1_ps(load_as<float>(act + __builtin_offsetof(ActBlock, s))), sum[c]);
          }
        }
      }
    }
    for (int64_t c = 0; c < width; ++c) store_half(a, c, half, sum[c]);
  }
}

MR_INLINE void dot_int8(Mode mode, int, int64_t width, const Dot& a) {
  switch (mode) {
    case Mode::plain: return a.full_bytes ? dot_int8_tile<Mode::plain, true>(width, a) : dot_int8_tile<Mode::plain, false>(width, a);
    case Mode::mins: return dot_int8_tile<Mode::mins, false>(width, a);
    case Mode::halves: return dot_int8_tile<Mode::halves, false>(width, a);
    case Mode::nibbles: break; // nibbles_as_they_lie wants none
  }
}

// Weights of 8 rows of input k.
template <int32_t type>
MR_INLINE __m256 weights_at(const uint8_t* w, int64_t k, int half) {
  if constexpr (type == type_f32) return _mm256_load_ps(reinterpret_cast<const float*>(w + k * 64 + half * 32));
  if constexpr (type == type_f16) return _mm256_cvtph_ps(load_128(w + k * 32 + half * 16));
  const __m256i pair = _mm256_load_si256(reinterpret_cast<const __m256i*>(w + k / 2 * 64 + half * 32));
  if (k % 2 == 0) return _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
  return _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32(int32_t(0xffff0000))));
}

template <int32_t type, int C>
__attribute__((noinline)) void dot_f32_tile(const Dot& a) {
  for (int half = 0; half < 2; ++half) {
    __m256 run[C];
#pragma GCC unroll 12
    for (int c = 0; c < C; ++c) run[c] = _mm256_setzero_ps();
    const uint8_t* x = a.act;
    for (int64_t k = 0; k < a.n; ++k, x += C * 4) {
      const __m256 w = weights_at<type>(a.w[0], k, half);
#pragma GCC unroll 12
      for (int c = 0; c < C; ++c) run[c] = _mm256_fmadd_ps(w, _mm256_set1_ps(load_as<float>(x + c * 4)), run[c]);
    }
#pragma GCC unroll 12
    for (int c = 0; c < C; ++c) store_half(a, c, half, a.first ? run[c] : _mm256_add_ps(load_half(a, c, half), run[c]));
  }
}

template <int32_t type>
void dot_f32_type(int64_t width, const Dot& a) {
  switch (width) {
    case 1: return dot_f32_tile<type, 1>(a);
    case 2: return dot_f32_tile<type, 2>(a);
    case 3: return dot_f32_tile<type, 3>(a);
    case 4: return dot_f32_tile<type, 4>(a);
    case 5: return dot_f32_tile<type, 5>(a);
    case 6: return dot_f32_tile<type, 6>(a);
    case 7: return dot_f32_tile<type, 7>(a);
    case 8: return dot_f32_tile<type, 8>(a);
    case 9: return dot_f32_tile<type, 9>(a);
    case 10: return dot_f32_tile<type, 10>(a);
    case 11: return dot_f32_tile<type, 11>(a);
    case 12: return dot_f32_tile<type, 12>(a);
  }
}

MR_INLINE void dot_f32(int32_t type, int, int64_t width, const Dot& a) {
  switch (type) {
    case type_f32: return dot_f32_type<type_f32>(width, a);
    case type_f16: return dot_f32_type<type_f16>(width, a);
    case type_bf16: return dot_f32_type<type_bf16>(width, a);
  }
}

#include "linear_tiles.inl"
#include "linear_multiply.inl"

} // namespace

const Kernels kernels_avx2[2] = {{prepare_f32, multiply_f32}, {prepare_int8, multiply_int8}};

} // namespace mr::cpu

#endif
