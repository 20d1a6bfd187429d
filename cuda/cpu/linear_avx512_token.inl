// Products of one token with Q8_0 and Q4_K straight from their packed groups: the decode step of a sequence alone, which waits
// for nothing but weights. Sums stay in registers from the first group to the last, and are those of the tiles, bit for bit.

constexpr int token_panels = stack_panels;

struct TokenGroup {
  const uint8_t* w[token_panels]; // the group of each panel
  const uint8_t* act;             // its ActBlocks
  int64_t n;                      // of them
};

// Walks stack after stack, group after group: add(group, fetch, sum).
template <bool near, class Add>
MR_INLINE void each_stack(const Matrix& m, const uint8_t* act, float* y, int64_t panel0, int64_t panel1,
                          const uint8_t* then, Add add) {
  const Layout layout(*find_format(m.type), m);
  for (int64_t panel = panel0; panel < panel1; panel += token_panels) {
    const int64_t count = min_of(token_panels, panel1 - panel);
    __m512 sum[token_panels];
    for (__m512& s : sum) s = _mm512_setzero_ps();
    TokenGroup group;
    group.act = act;
    for (int64_t g = 0; g < layout.groups; ++g) {
      // Where fewer panels are left, the last is multiplied again and thrown away.
      for (int64_t i = 0; i < token_panels; ++i) group.w[i] = layout.at(panel + min_of(i, count - 1), g);
      group.n = layout.inputs(g) / 32;
      const uint8_t* next = g + 1 < layout.groups         ? layout.at(panel, g + 1)
                            : panel + token_panels < panel1 ? layout.at(panel + token_panels, 0)
                                                            : then;
      add(group, Fetch<token_panels, near>(next, (token_panels * layout.full_bytes / 64 + group.n - 1) / group.n), sum);
      group.act += group.n * 64;
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t rows = min_of(panel_rows, m.out - (panel + i) * panel_rows);
      _mm512_mask_storeu_ps(y + (panel + i) * panel_rows, __mmask16((1u << rows) - 1), sum[i]);
    }
  }
}

template <bool near>
void token_q8_0(const Matrix& m, const uint8_t* act, float* y, int64_t panel0, int64_t panel1, const uint8_t* then) {
  constexpr int P = token_panels;
  each_stack<near>(m, act, y, panel0, panel1, then, [](const TokenGroup& group, Fetch<P, near> fetch, __m512 (&sum)[P]) {
    const uint8_t *x = group.act, *scales = group.w[0] + group.n * 512;
    const int64_t apart[P] = {0, group.w[1] - group.w[0], group.w[2] - group.w[0], group.w[3] - group.w[0]};
    const uint8_t* w = group.w[0];
    for (int64_t b = 0; b < group.n; ++b, x += 64, w += 512, scales += 32) {
      __m512i dot[P];
      const __m512i start = broadcast(x + __builtin_offsetof(ActBlock, bias128));
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) dot[p] = start;
#pragma GCC unroll 1
      for (int two = 0; two < 8; two += 2) {
        fetch.step();
#pragma GCC unroll 2
        for (int g = two; g < two + 2; ++g) {
          const __m512i v = broadcast(x + g * 4);
#pragma GCC unroll 4
          for (int p = 0; p < P; ++p) dot[p] = _mm512_dpbusd_epi32(dot[p], _mm512_load_si512(w + apart[p] + g * 64), v);
        }
      }
      fetch.rest();
      const __m512 x_scale = broadcast_f32(x + __builtin_offsetof(ActBlock, d));
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const __m512 both = _mm512_mul_ps(halves_at(scales + apart[p]), x_scale);
        sum[p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[p]), both, sum[p]);
      }
    }
  });
}

template <bool near>
void token_q4_k(const Matrix& m, const uint8_t* act, float* y, int64_t panel0, int64_t panel1, const uint8_t* then) {
  constexpr int P = token_panels;
  const __m512i low_mask = _mm512_set1_epi8(15), high_mask = _mm512_set1_epi8(int8_t(0xf0));
  Expanded expanded[P]; // scales and mins
  each_stack<near>(m, act, y, panel0, panel1, then, [&](const TokenGroup& group, Fetch<P, near> fetch, __m512 (&sum)[P]) {
    fetch.lines *= 2; // two blocks, low and high nibbles, are taken at once
    for (int p = 0; p < P; ++p) scales_q4_k(group.w[p], expanded[p]);
    const uint8_t* x = group.act;
    for (int64_t pair = 0; pair < group.n / 2; ++pair, x += 128) {
      __m512i low[P], high[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) low[p] = high[p] = _mm512_setzero_si512();
#pragma GCC unroll 1
      for (int two = 0; two < 8; two += 2) {
        fetch.step();
#pragma GCC unroll 2
        for (int g = two; g < two + 2; ++g) {
          const __m512i v = broadcast(x + g * 4), z = broadcast(x + 64 + g * 4);
#pragma GCC unroll 4
          for (int p = 0; p < P; ++p) {
            const __m512i both = _mm512_load_si512(group.w[p] + pair * 512 + g * 64);
            low[p] = _mm512_dpbusd_epi32(low[p], _mm512_and_si512(both, low_mask), v);
            high[p] = _mm512_dpbusd_epi32(high[p], _mm512_and_si512(both, high_mask), z);
          }
        }
      }
      fetch.rest();
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; ++odd) {
        const __m512 x_scale = broadcast_f32(x + odd * 64 + __builtin_offsetof(ActBlock, d));
        const __m512 x_sum = broadcast_f32(x + odd * 64 + __builtin_offsetof(ActBlock, s));
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
          const __m512 both = _mm512_mul_ps(_mm512_load_ps(expanded[p].d[2 * pair + odd]), x_scale);
          sum[p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(odd == 0 ? low[p] : high[p]), both, sum[p]);
          sum[p] = _mm512_fmadd_ps(_mm512_load_ps(expanded[p].m[2 * pair + odd]), x_sum, sum[p]);
        }
      }
    }
  });
}

void multiply_quants(const Matrix& m, const uint8_t* act, int64_t tokens, float* y, int64_t ldy, int64_t panel0,
                     int64_t panel1, const uint8_t* then) {
  if (tokens == 1 && m.type == type_q8_0) return (first_level ? token_q8_0<true> : token_q8_0<false>)(m, act, y, panel0, panel1, then);
  if (tokens == 1 && m.type == type_q4_k) return (first_level ? token_q4_k<true> : token_q4_k<false>)(m, act, y, panel0, panel1, then);
  multiply_int8(m, act, tokens, y, ldy, panel0, panel1, then);
}
