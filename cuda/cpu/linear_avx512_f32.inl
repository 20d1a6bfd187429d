// fp32 products of F32, F16 and BF16 weights, widened in registers. Two panels by twelve tokens for many tokens; a whole
// stack, four chains, for few.

MR_INLINE int64_t wide_f32(int64_t tokens) { return tokens <= 6 ? 4 : 2; }

// Weights of input k of a panel; k is a constant, so that each BF16 pair is loaded once.
template <int32_t type>
MR_INLINE __m512 weights_at(const uint8_t* w, int64_t k) {
  if constexpr (type == type_f32) return _mm512_load_ps(w + k * 64);
  if constexpr (type == type_f16) return halves_at(w + k * 32);
  const __m512i pair = _mm512_load_si512(w + k / 2 * 64);
  if (k % 2 == 0) return _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
  return _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32(int32_t(0xffff0000))));
}

template <int32_t type, int P, int C>
void dot_f32_tile(const Dot& a) {
  constexpr int step = 4, bytes = type == type_f32 ? 64 : 32;
  __m512 run[P][C];
  const uint8_t *x = a.act, *w[P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    w[p] = a.w[p];
#pragma GCC unroll 12
    for (int c = 0; c < C; ++c) run[p][c] = _mm512_setzero_ps();
  }
  const bool fetching = a.fetch_lines != 0;
  const int64_t n = a.n;
  int64_t k = 0;
  for (; k + step <= n; k += step) {
    if (fetching) {
#pragma GCC unroll 4
      for (int i = 0; i < step * bytes; i += 64) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) prefetch(a.fetch + (k * bytes + i) * P + p * 64);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < step; ++i) {
      __m512 weights[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) weights[p] = weights_at<type>(w[p] + k * bytes, i);
#pragma GCC unroll 12
      for (int c = 0; c < C; ++c) {
        const __m512 v = broadcast_f32(x + (i * C + c) * 4);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) run[p][c] = _mm512_fmadd_ps(weights[p], v, run[p][c]);
      }
    }
    x += step * C * 4;
  }
  for (int64_t i = 0; k + i < n; ++i) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const __m512 weights = weights_at<type>(w[p] + k * bytes, i);
#pragma GCC unroll 12
      for (int c = 0; c < C; ++c) run[p][c] = _mm512_fmadd_ps(weights, broadcast_f32(x + c * 4), run[p][c]);
    }
    x += C * 4;
  }
  if (!a.first) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 12
      for (int c = 0; c < C; ++c) run[p][c] = _mm512_add_ps(_mm512_load_ps(a.sums[p] + c * panel_rows), run[p][c]);
    }
  }
  store_sums(a, run);
}

template <int32_t type>
void dot_f32_type(int panels, int64_t width, const Dot& a) {
  if (panels == 4) {
    switch (width) {
      case 1: return dot_f32_tile<type, 4, 1>(a);
      case 2: return dot_f32_tile<type, 4, 2>(a);
      case 3: return dot_f32_tile<type, 4, 3>(a);
      case 4: return dot_f32_tile<type, 4, 4>(a);
      case 5: return dot_f32_tile<type, 4, 5>(a);
      case 6: return dot_f32_tile<type, 4, 6>(a);
    }
  }
  switch (width) { // more than six tokens never leave a tile of fewer than six
    case 6: return dot_f32_tile<type, 2, 6>(a);
    case 7: return dot_f32_tile<type, 2, 7>(a);
    case 8: return dot_f32_tile<type, 2, 8>(a);
    case 9: return dot_f32_tile<type, 2, 9>(a);
    case 10: return dot_f32_tile<type, 2, 10>(a);
    case 11: return dot_f32_tile<type, 2, 11>(a);
    case 12: return dot_f32_tile<type, 2, 12>(a);
  }
}

MR_INLINE void dot_f32(int32_t type, int panels, int64_t width, const Dot& a) {
  switch (type) {
    case type_f32: return dot_f32_type<type_f32>(panels, width, a);
    case type_f16: return dot_f32_type<type_f16>(panels, width, a);
    case type_bf16: return dot_f32_type<type_bf16>(panels, width, a);
  }
}
