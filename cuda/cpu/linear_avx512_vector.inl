// What AVX-512 provides to linear_prepare.inl and linear_expand.inl.

MR_INLINE void store_block(int8_t* p, const i32v (&q)[2], int32_t (&sums)[2]) {
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m128i bytes = _mm512_cvtepi32_epi8((__m512i)q[i]);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 16 * i), bytes);
    const __m128i eights = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(-128)), _mm_setzero_si128()); // 128 too large each
    sums[i] = _mm_cvtsi128_si32(eights) + _mm_extract_epi16(eights, 4) - 16 * 128;
  }
}

MR_INLINE __m128i load_128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

MR_INLINE f32v halves_at(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
MR_INLINE f32v bytes_at(const uint8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_128(p))); }
MR_INLINE f32v signed_at(const uint8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_128(p))); }

MR_INLINE u8v table_of(const int8_t (&values)[16], int bias, const u8v& index) {
  const __m128i biased = _mm_add_epi8(load_128(values), _mm_set1_epi8(int8_t(bias)));
  return (u8v)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(biased), (__m512i)index);
}
