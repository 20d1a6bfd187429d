// What the AVX-512 kernels share: broadcasts, hints, and the sums of P panels by C tokens between groups.

MR_INLINE __m512i broadcast(const uint8_t* p) { return _mm512_set1_epi32(load_as<int32_t>(p)); }
MR_INLINE __m512 broadcast_f32(const uint8_t* p) { return _mm512_set1_ps(load_as<float>(p)); }

template <int P, int C>
MR_INLINE void load_sums(const Dot& a, __m512 (&sum)[P][C]) {
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 12
    for (int c = 0; c < C; ++c) sum[p][c] = a.first ? _mm512_setzero_ps() : _mm512_load_ps(a.sums[p] + c * panel_rows);
  }
}

template <int P, int C>
MR_INLINE void store_sums(const Dot& a, const __m512 (&sum)[P][C]) {
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    const __mmask16 mask = __mmask16((1u << a.rows[p]) - 1);
    float* y = a.y[p];
#pragma GCC unroll 12
    for (int c = 0; c < C; ++c) {
      if (a.last) _mm512_mask_storeu_ps(y + c * a.ldy, mask, sum[p][c]);
      else _mm512_store_ps(a.sums[p] + c * panel_rows, sum[p][c]);
    }
  }
}
