#include "blake3_core.h"

#if defined(__x86_64__)

#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2")
namespace mr::blake3_core::avx2 {

using Vec = __m256i;
constexpr int kLanes = 8;

inline Vec add(Vec a, Vec b) { return _mm256_add_epi32(a, b); }
inline Vec exclusive_or(Vec a, Vec b) { return _mm256_xor_si256(a, b); }
inline Vec broadcast(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
inline Vec load(const uint32_t* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }
inline void store(uint32_t* p, Vec x) { _mm256_store_si256(reinterpret_cast<__m256i*>(p), x); }

template <int kBits>
inline Vec rotate_right(Vec x) {
  if constexpr (kBits == 16) {
    return _mm256_shuffle_epi8(x, _mm256_set_epi8(13, 12, 15, 14, 9, 8, 11, 10, 5, 4, 7, 6, 1, 0, 3, 2, 13, 12, 15, 14, 9, 8,
                                                  11, 10, 5, 4, 7, 6, 1, 0, 3, 2));
  } else if constexpr (kBits == 8) {
    return _mm256_shuffle_epi8(x, _mm256_set_epi8(12, 15, 14, 13, 8, 11, 10, 9, 4, 7, 6, 5, 0, 3, 2, 1, 12, 15, 14, 13, 8, 11,
                                                  10, 9, 4, 7, 6, 5, 0, 3, 2, 1));
  } else {
    return _mm256_or_si256(_mm256_srli_epi32(x, kBits), _mm256_slli_epi32(x, 32 - kBits));
  }
}

// Eight rows of eight words become eight columns.
inline void transpose(Vec* r) {
  const Vec a0 = _mm256_unpacklo_epi32(r[0], r[1]), a1 = _mm256_unpackhi_epi32(r[0], r[1]);
  const Vec a2 = _mm256_unpacklo_epi32(r[2], r[3]), a3 = _mm256_unpackhi_epi32(r[2], r[3]);
  const Vec a4 = _mm256_unpacklo_epi32(r[4], r[5]), a5 = _mm256_unpackhi_epi32(r[4], r[5]);
  const Vec a6 = _mm256_unpacklo_epi32(r[6], r[7]), a7 = _mm256_unpackhi_epi32(r[6], r[7]);
  const Vec b0 = _mm256_unpacklo_epi64(a0, a2), b1 = _mm256_unpackhi_epi64(a0, a2);
  const Vec b2 = _mm256_unpacklo_epi64(a1, a3), b3 = _mm256_unpackhi_epi64(a1, a3);
  const Vec b4 = _mm256_unpacklo_epi64(a4, a6), b5 = _mm256_unpackhi_epi64(a4, a6);
  const Vec b6 = _mm256_unpacklo_epi64(a5, a7), b7 = _mm256_unpackhi_epi64(a5, a7);
  r[0] = _mm256_permute2x128_si256(b0, b4, 0x20);
  r[1] = _mm256_permute2x128_si256(b1, b5, 0x20);
  r[2] = _mm256_permute2x128_si256(b2, b6, 0x20);
  r[3] = _mm256_permute2x128_si256(b3, b7, 0x20);
  r[4] = _mm256_permute2x128_si256(b0, b4, 0x31);
  r[5] = _mm256_permute2x128_si256(b1, b5, 0x31);
  r[6] = _mm256_permute2x128_si256(b2, b6, 0x31);
  r[7] = _mm256_permute2x128_si256(b3, b7, 0x31);
}

inline void load_block(const uint8_t* data, size_t stride, Vec (&m)[16]) {
  for (int half = 0; half < 2; ++half) {
    for (int lane = 0; lane < 8; ++lane)
      m[half * 8 + lane] =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + static_cast<size_t>(lane) * stride + half * 32));
    transpose(m + half * 8);
  }
}

#include "blake3_lanes.h"

}  // namespace mr::blake3_core::avx2

namespace mr::blake3_core {
void hash_lanes_avx2(const Job& job, uint32_t (*value)[8]) { avx2::hash_lanes(job, value); }
}  // namespace mr::blake3_core
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f")
namespace mr::blake3_core::avx512 {

using Vec = __m512i;
constexpr int kLanes = 16;

inline Vec add(Vec a, Vec b) { return _mm512_add_epi32(a, b); }
inline Vec exclusive_or(Vec a, Vec b) { return _mm512_xor_si512(a, b); }
inline Vec broadcast(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
inline Vec load(const uint32_t* p) { return _mm512_load_si512(p); }
inline void store(uint32_t* p, Vec x) { _mm512_store_si512(p, x); }
// The form with a full mask avoids a false warning of g++ 12 about its own header; the machine code is the same.
template <int kBits>
inline Vec rotate_right(Vec x) {
  return _mm512_maskz_ror_epi32(0xffff, x, kBits);
}

// Sixteen rows of sixteen words become sixteen columns: words, then pairs, inside 128-bit parts; then the parts.
inline void load_block(const uint8_t* data, size_t stride, Vec (&m)[16]) {
  const __mmask16 words = 0xffff;
  const __mmask8 pairs = 0xff;
  Vec r[16], t[16];
  for (int lane = 0; lane < 16; ++lane) r[lane] = _mm512_loadu_si512(data + static_cast<size_t>(lane) * stride);
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_maskz_unpacklo_epi32(words, r[i], r[i + 1]);
    t[i + 1] = _mm512_maskz_unpackhi_epi32(words, r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_maskz_unpacklo_epi64(pairs, t[i], t[i + 2]);
    r[i + 1] = _mm512_maskz_unpackhi_epi64(pairs, t[i], t[i + 2]);
    r[i + 2] = _mm512_maskz_unpacklo_epi64(pairs, t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_maskz_unpackhi_epi64(pairs, t[i + 1], t[i + 3]);
  }
  // r[4q + c], part p: word 4p + c of lanes 4q .. 4q+3.
  for (int c = 0; c < 4; ++c) {
    const Vec low01 = _mm512_maskz_shuffle_i32x4(words, r[c], r[4 + c], 0x88);   // parts 0, 2 of lanes 0-3, then 4-7
    const Vec low23 = _mm512_maskz_shuffle_i32x4(words, r[8 + c], r[12 + c], 0x88);
    const Vec high01 = _mm512_maskz_shuffle_i32x4(words, r[c], r[4 + c], 0xdd);  // parts 1, 3
    const Vec high23 = _mm512_maskz_shuffle_i32x4(words, r[8 + c], r[12 + c], 0xdd);
    m[c] = _mm512_maskz_shuffle_i32x4(words, low01, low23, 0x88);
    m[8 + c] = _mm512_maskz_shuffle_i32x4(words, low01, low23, 0xdd);
    m[4 + c] = _mm512_maskz_shuffle_i32x4(words, high01, high23, 0x88);
    m[12 + c] = _mm512_maskz_shuffle_i32x4(words, high01, high23, 0xdd);
  }
}

#include "blake3_lanes.h"

}  // namespace mr::blake3_core::avx512

namespace mr::blake3_core {
void hash_lanes_avx512(const Job& job, uint32_t (*value)[8]) { avx512::hash_lanes(job, value); }
}  // namespace mr::blake3_core
#pragma GCC pop_options

#endif  // __x86_64__
