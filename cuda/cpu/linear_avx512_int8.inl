// int8 dot products. Two panels by six tokens make twelve chains of vpdpbusd, enough for two a cycle at a latency of five;
// each broadcast of four inputs of a token serves both panels. Few tokens wait for memory, which gives most where it is read in
// one stream: they take a whole stack, whose sums leave the registers between blocks.

// Asks for what a block wants next: two lines a panel with every other of its eight steps, and the rest at its end. All at
// once they would fill the queue that the weights come through. Where several tiles share a block's lines, each asks for a quarter of its
// own with every other step. `near` ones into the first-level cache.
template <int P, bool near>
struct Fetch {
  const uint8_t* at;
  int64_t lines, quarter;

  Fetch(const uint8_t* from, int64_t lines_a_block) : at(from), lines(lines_a_block), quarter(lines_a_block / 4) {}
  bool steps() const { return lines >= 8 * P; }
  __attribute__((always_inline)) void step() {
    if (steps()) {
#pragma GCC unroll 8
      for (int i = 0; i < 2 * P; ++i) prefetch_to<near>(at + i * 64);
      at += 2 * P * 64;
    } else {
      for (int64_t i = 0; i < quarter; ++i, at += 64) prefetch_to<near>(at);
    }
  }
  __attribute__((always_inline)) void rest() {
    for (int64_t i = steps() ? 8 * P : 4 * quarter; i < lines; ++i, at += 64) prefetch_to<near>(at);
  }
};

MR_INLINE int64_t wide_int8(int64_t tokens) { return tokens <= 8 ? 4 : 2; }

// To mask each vector in every tile costs less than to spread a group once, where tiles are few.
MR_INLINE bool nibbles_as_they_lie(int64_t tokens) { return tokens <= 6 * int8_tile; }

// As an intrinsic, a compiler moves the sum to another register and back.
MR_INLINE void add_products(__m512i& sum, __m512i weights, __m512i x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(x));
}

template <Mode mode, bool near, int P, int C>
__attribute__((noinline)) void dot_int8_tile(const Dot& a) {
  constexpr int parts = parts_of(mode);
  __m512 sum[P][C];
  load_sums(a, sum);
  const uint8_t *act = a.act, *w[P];
  const float *d[P], *m[P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    w[p] = a.w[p];
    d[p] = a.d[p];
    m[p] = a.m[p];
  }
  const int64_t n = a.n, bias = a.bias;
  Fetch<P, near> fetch(a.fetch, a.fetch_lines);
  __m512i nibble = _mm512_set1_epi8(0xf); // of the block
  for (int64_t b = 0; b < n; ++b) {
    const int64_t at = (mode == Mode::nibbles ? b / 2 : b) * 512;
#pragma GCC unroll 2
    for (int part = 0; part < parts; ++part) {
      __m512i dot[P][C];
#pragma GCC unroll 6
      for (int c = 0; c < C; ++c) {
        __m512i start = mode == Mode::halves_mins ? _mm512_setzero_si512() : broadcast(act + c * 64 + bias + part * 4);
        if (mode == Mode::halves_wide) start = _mm512_add_epi32(start, start);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) dot[p][c] = start;
      }
#pragma GCC unroll 4
      for (int two = part * 8 / parts; two < (part + 1) * 8 / parts; two += 2) {
        fetch.step();
#pragma GCC unroll 2
        for (int g = two; g < two + 2; ++g) {
          __m512i weights[P];
#pragma GCC unroll 4
          for (int p = 0; p < P; ++p) {
            weights[p] = _mm512_load_si512(w[p] + at + g * 64);
            if constexpr (mode == Mode::nibbles) weights[p] = _mm512_and_si512(weights[p], nibble);
          }
#pragma GCC unroll 6
          for (int c = 0; c < C; ++c) {
            const __m512i x = broadcast(act + c * 64 + g * 4);
#pragma GCC unroll 4
            for (int p = 0; p < P; ++p) add_products(dot[p][c], weights[p], x);
          }
        }
      }
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const __m512 scale = mode == Mode::bytes ? __m512(halves_at(a.f16[p] + b * 32))
                                                 : _mm512_load_ps(d[p] + (b * parts + part) * panel_rows);
#pragma GCC unroll 6
        for (int c = 0; c < C; ++c) {
          const __m512 both = _mm512_mul_ps(scale, broadcast_f32(act + c * 64 + __builtin_offsetof(ActBlock, d)));
          sum[p][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[p][c]), both, sum[p][c]);
        }
        if constexpr (mode == Mode::halves_mins) {
          const __m512 least = _mm512_load_ps(m[p] + (b * parts + part) * panel_rows);
#pragma GCC unroll 6
          for (int c = 0; c < C; ++c) {
            const __m512 x_sum = _mm512_mul_ps(_mm512_cvtepi32_ps(broadcast(act + c * 64 + bias + part * 4)),
                                               broadcast_f32(act + c * 64 + __builtin_offsetof(ActBlock, d)));
            sum[p][c] = _mm512_fmadd_ps(least, x_sum, sum[p][c]);
          }
        }
        if constexpr (mode == Mode::mins || mode == Mode::nibbles) {
          const __m512 least = _mm512_load_ps(m[p] + b * panel_rows);
#pragma GCC unroll 6
          for (int c = 0; c < C; ++c) {
            sum[p][c] = _mm512_fmadd_ps(least, broadcast_f32(act + c * 64 + __builtin_offsetof(ActBlock, s)), sum[p][c]);
          }
        }
      }
    }
    fetch.rest();
    act += C * 64;
    if constexpr (mode == Mode::nibbles) nibble = _mm512_andnot_si512(nibble, _mm512_set1_epi8(-1));
  }
  store_sums(a, sum);
}

template <Mode mode, bool near>
void dot_int8_mode(int panels, int64_t width, const Dot& a) {
  if (panels == 4) {
    switch (width) {
      case 1: return dot_int8_tile<mode, near, 4, 1>(a);
      case 2: return dot_int8_tile<mode, near, 4, 2>(a);
      case 3: return dot_int8_tile<mode, near, 4, 3>(a);
      case 4: return dot_int8_tile<mode, near, 4, 4>(a);
      case 5: return dot_int8_tile<mode, near, 4, 5>(a);
      case 6: return dot_int8_tile<mode, near, 4, 6>(a);
    }
  }
  switch (width) { // more than eight tokens never leave a tile of fewer than three
    case 3: return dot_int8_tile<mode, near, 2, 3>(a);
    case 4: return dot_int8_tile<mode, near, 2, 4>(a);
    case 5: return dot_int8_tile<mode, near, 2, 5>(a);
    case 6: return dot_int8_tile<mode, near, 2, 6>(a);
  }
}

template <bool near>
MR_INLINE void dot_int8_near(Mode mode, int panels, int64_t width, const Dot& a) {
  switch (mode) {
    case Mode::plain: return dot_int8_mode<Mode::plain, near>(panels, width, a);
    case Mode::mins: return dot_int8_mode<Mode::mins, near>(panels, width, a);
    case Mode::halves: return dot_int8_mode<Mode::halves, near>(panels, width, a);
    case Mode::halves_wide: return dot_int8_mode<Mode::halves_wide, near>(panels, width, a);
    case Mode::halves_mins: return dot_int8_mode<Mode::halves_mins, near>(panels, width, a);
    case Mode::nibbles: return dot_int8_mode<Mode::nibbles, near>(panels, width, a);
    case Mode::bytes: return dot_int8_mode<Mode::bytes, near>(panels, width, a);
  }
}

MR_INLINE void dot_int8(Mode mode, int panels, int64_t width, const Dot& a) {
  first_level ? dot_int8_near<true>(mode, panels, width, a) : dot_int8_near<false>(mode, panels, width, a);
}
