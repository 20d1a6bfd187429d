// What the AVX-512 kernels share: broadcasts, hints, and the sums of P panels by C tokens between groups.

MR_INLINE __m512i broadcast(const uint8_t* p) { return _mm512_set1_epi32(load_as<int32_t>(p)); }
MR_INLINE __m512 broadcast_f32(const uint8_t* p) { return _mm512_set1_ps(load_as<float>(p)); }

// Weights are asked for up to 34 KiB ahead. A first-level cache of 48 KiB takes that; one of 32 KiB would lose it again before
// it is read, and the second level is asked: on Zen 4 that brings Q8_0 from 80 to 94 % of what memory gives, BF16 from 86 to
// 97 %. So it is on Intel's, whatever the first level takes: it waits for 16 lines at a time, fewer than memory has to be asked
// for; on Sapphire Rapids that brings Q8_0 from 90 to 96 %, and eight tokens a tenth.
bool asks_first_level() {
  __builtin_cpu_init();
  return !__builtin_cpu_is("intel") && sysconf(_SC_LEVEL1_DCACHE_SIZE) >= 48 * 1024;
}
const bool first_level = asks_first_level();

MR_INLINE void prefetch(const uint8_t* p) {
  if (first_level) _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
  else _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
}

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
