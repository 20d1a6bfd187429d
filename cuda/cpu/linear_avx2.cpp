// Products on AVX2 with FMA and F16C: a panel as two halves of 8 rows.
#if defined(__x86_64__)

#pragma GCC optimize("O2") // unrolling is spelled out; more of it only takes the compiler longer
#pragma GCC optimize("fp-contract=off")
#pragma GCC target("avx2,fma,f16c")

#include <immintrin.h>
#include <stdint.h>

#include <utility>

#include "linear_format.h"
#include "linear_kernels.h"

namespace mr::cpu {

namespace {

constexpr int lanes = 8;

#include "linear_vector.inl"

constexpr bool high_scaled = false; // 240 * 127 * 2 does not fit 16 bits

MR_INLINE __m128i load_128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

MR_INLINE __m128i load_64(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }

MR_INLINE void store_block(int8_t* p, const i32v (&q)[4], int32_t (&sums)[2]) {
  const __m256i low = _mm256_packs_epi32((__m256i)q[0], (__m256i)q[1]), high = _mm256_packs_epi32((__m256i)q[2], (__m256i)q[3]);
  // Packing goes by halves of registers: of each four inputs 0, 2, 4, 6 lie in the low half, 1, 3, 5, 7 in the high one.
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bytes);
  const __m256i eights = _mm256_sad_epu8(_mm256_xor_si256(bytes, _mm256_set1_epi8(-128)), _mm256_setzero_si256()); // 128 too large each
  sums[0] = _mm256_extract_epi32(eights, 0) + _mm256_extract_epi32(eights, 2) - 16 * 128;
  sums[1] = _mm256_extract_epi32(eights, 4) + _mm256_extract_epi32(eights, 6) - 16 * 128;
}

MR_INLINE f32v halves_at(const uint8_t* p) { return _mm256_cvtph_ps(load_128(p)); }
MR_INLINE f32v bytes_at(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_64(p))); }
MR_INLINE f32v signed_at(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_64(p))); }

MR_INLINE u8v table_of(const int8_t (&values)[16], int bias, const u8v& index) {
  const __m128i biased = _mm_add_epi8(load_128(values), _mm_set1_epi8(int8_t(bias)));
  return (u8v)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(biased), (__m256i)index);
}

#include "linear_prepare.inl"
#include "linear_expand.inl"
#include "linear_dot.inl"

// A whole stack, which lies in memory as one stream; its panels are multiplied one by one.
MR_INLINE int64_t wide_int8(int64_t) { return stack_panels; }
MR_INLINE int64_t wide_f32(int64_t) { return stack_panels; }

// To part each vector in every tile costs less than to spread a group once, where tiles are few.
MR_INLINE bool nibbles_as_they_lie(int64_t tokens) { return tokens <= 6 * int8_tile; }

// Writes 8 sums of rows 8*half.. of panel p: to the waiting sums, or the rows that exist to y.
MR_INLINE void store_half(const Dot& a, int p, int64_t c, int half, __m256 v) {
  if (!a.last) return _mm256_store_ps(a.sums[p] + c * panel_rows + 8 * half, v);
  float* y = a.y[p] + c * a.ldy + 8 * half;
  const int64_t rows = a.rows[p] - 8 * half;
  if (rows >= 8) return _mm256_storeu_ps(y, v);
  alignas(32) float sums[8];
  _mm256_store_ps(sums, v);
  for (int64_t r = 0; r < rows; ++r) y[r] = sums[r];
}

MR_INLINE __m256 load_half(const Dot& a, int p, int64_t c, int half) {
  return a.first ? _mm256_setzero_ps() : _mm256_load_ps(a.sums[p] + c * panel_rows + 8 * half);
}

MR_INLINE __m256i broadcast(const uint8_t* p) { return _mm256_set1_epi32(load_as<int32_t>(p)); }
MR_INLINE __m256 broadcast_f32(const uint8_t* p) { return _mm256_set1_ps(load_as<float>(p)); }

// Weights wanted next: `lines` cache lines with each piece of work. They are asked for into the first level, where they come in time: these
// kernels take longer over a line than those of AVX-512.
struct Fetch {
  const uint8_t* at;
  int64_t lines;

  __attribute__((always_inline)) void ask() {
    for (int64_t i = 0; i < lines; ++i, at += 64) __builtin_prefetch(at, 0, 3);
  }
};

#include "linear_avx2_int8.inl"
#include "linear_avx2_f32.inl"
#include "linear_tiles.inl"
#include "linear_multiply.inl"

} // namespace

const Kernels kernels_avx2[2] = {{prepare_f32, multiply_f32}, {prepare_int8, multiply_int8}};

} // namespace mr::cpu

#endif
