// int8 dot products. Two panels by six tokens make twelve chains of vpdpbusd, enough for two a cycle at a latency of five;
// each broadcast of four inputs of a token serves both panels. Few tokens take four panels, for more chains and streams.

MR_INLINE int64_t wide_int8(int64_t tokens) { return tokens <= 3 ? 4 : 2; }

template <Mode mode, int P, int C>
__attribute__((noinline)) void dot_int8_tile(const Dot& a) {
  constexpr int parts = mode == Mode::halves ? 2 : 1;
  __m512 sum[P][C];
  load_sums(a, sum);
  const uint8_t *act = a.act, *w[P], *fetch[P];
  const float *d[P], *m[P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    w[p] = a.w[p];
    d[p] = a.d[p];
    m[p] = a.m[p];
    fetch[p] = a.fetch[p];
  }
  const int64_t n = a.n, bias = a.bias, lines = a.fetch_lines;
  for (int64_t b = 0; b < n; ++b) {
    if (lines != 0) {
      for (int64_t i = 0; i < lines; ++i) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) prefetch(fetch[p] + (b * lines + i) * 64);
      }
    }
#pragma GCC unroll 2
    for (int part = 0; part < parts; ++part) {
      __m512i dot[P][C];
#pragma GCC unroll 6
      for (int c = 0; c < C; ++c) {
        const __m512i start = broadcast(act + c * 64 + bias + part * 4);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) dot[p][c] = start;
      }
#pragma GCC unroll 8
      for (int g = part * 8 / parts; g < (part + 1) * 8 / parts; ++g) {
        __m512i weights[P];
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) weights[p] = _mm512_load_si512(w[p] + b * 512 + g * 64);
#pragma GCC unroll 6
        for (int c = 0; c < C; ++c) {
          const __m512i x = broadcast(act + c * 64 + g * 4);
#pragma GCC unroll 4
          for (int p = 0; p < P; ++p) dot[p][c] = _mm512_dpbusd_epi32(dot[p][c], weights[p], x);
        }
      }
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const __m512 scale = _mm512_load_ps(d[p] + (b * parts + part) * panel_rows);
#pragma GCC unroll 6
        for (int c = 0; c < C; ++c) {
          const __m512 both = _mm512_mul_ps(scale, broadcast_f32(act + c * 64 + __builtin_offsetof(ActBlock, d)));
          sum[p][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[p][c]), both, sum[p][c]);
        }
        if constexpr (mode == Mode::mins) {
          const __m512 least = _mm512_load_ps(m[p] + b * panel_rows);
#pragma GCC unroll 6
          for (int c = 0; c < C; ++c) {
            sum[p][c] = _mm512_fmadd_ps(least, broadcast_f32(act + c * 64 + __builtin_offsetof(ActBlock, s)), sum[p][c]);
          }
        }
      }
    }
    act += C * 64;
  }
  store_sums(a, sum);
}

// One token against four panels of Q4_K straight from the packed nibbles: the sums of dot_int8_tile<Mode::mins, 4, 1>, bit
// for bit, without a detour of the weights through memory.
void dot_q4_k_token(const Dot& a) {
  constexpr int P = 4;
  __m512 sum[P][1];
  load_sums(a, sum);
  const uint8_t* act = a.act;
  const int64_t lines = 2 * a.fetch_lines;
  const __m512i low_mask = _mm512_set1_epi8(15), high_mask = _mm512_set1_epi8(int8_t(0xf0));
  for (int64_t pair = 0; pair < a.n / 2; ++pair, act += 128) {
    for (int64_t i = 0; i < lines; ++i) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) prefetch(a.fetch[p] + (pair * lines + i) * 64);
    }
    __m512i low[P], high[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) low[p] = high[p] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) {
      const __m512i x = broadcast(act + g * 4), z = broadcast(act + 64 + g * 4);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const __m512i both = _mm512_load_si512(a.packed[p] + pair * 512 + g * 64);
        low[p] = _mm512_dpbusd_epi32(low[p], _mm512_and_si512(both, low_mask), x);
        high[p] = _mm512_dpbusd_epi32(high[p], _mm512_and_si512(both, high_mask), z);
      }
    }
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      const __m512 x_scale = broadcast_f32(act + odd * 64 + __builtin_offsetof(ActBlock, d));
      const __m512 x_sum = broadcast_f32(act + odd * 64 + __builtin_offsetof(ActBlock, s));
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const __m512 both = _mm512_mul_ps(_mm512_load_ps(a.d[p] + (2 * pair + odd) * panel_rows), x_scale);
        sum[p][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(odd == 0 ? low[p] : high[p]), both, sum[p][0]);
        sum[p][0] = _mm512_fmadd_ps(_mm512_load_ps(a.m[p] + (2 * pair + odd) * panel_rows), x_sum, sum[p][0]);
      }
    }
  }
  store_sums(a, sum);
}

template <Mode mode>
void dot_int8_mode(int panels, int64_t width, const Dot& a) {
  if (panels == 4) {
    switch (width) {
      case 1: return dot_int8_tile<mode, 4, 1>(a);
      case 2: return dot_int8_tile<mode, 4, 2>(a);
      case 3: return dot_int8_tile<mode, 4, 3>(a);
    }
  }
  switch (width) { // more than three tokens never leave a tile of fewer than three
    case 3: return dot_int8_tile<mode, 2, 3>(a);
    case 4: return dot_int8_tile<mode, 2, 4>(a);
    case 5: return dot_int8_tile<mode, 2, 5>(a);
    case 6: return dot_int8_tile<mode, 2, 6>(a);
  }
}

// Types whose weights a product of so many tokens reads as they are packed.
MR_INLINE bool reads_packed(int32_t type, int64_t tokens) { return type == type_q4_k && tokens == 1; }

MR_INLINE void dot_int8(Mode mode, int panels, int64_t width, const Dot& a) {
  if (a.packed[0] != nullptr) return dot_q4_k_token(a);
  switch (mode) {
    case Mode::plain: return dot_int8_mode<Mode::plain>(panels, width, a);
    case Mode::mins: return dot_int8_mode<Mode::mins>(panels, width, a);
    case Mode::halves: return dot_int8_mode<Mode::halves>(panels, width, a);
  }
}
