// int8 dot products. vpmaddubsw multiplies unsigned weights by signed activations and adds two products in 16 bits. Weights of a few bits
// leave room there: the sums of several steps are added before they are widened to 32 bits, which are half of the multiplications.
//
// Sixteen registers hold six tokens' sums of two halves of a panel, eight rows each; weights of more bits, whose sums are of 32 bits
// too, are taken half by half. Sums in fp32 wait in the first-level cache between blocks.

// Steps of four inputs whose sums fit 16 bits: steps * 2 * most * 127 <= 32767, within a scale. Full bytes are taken as magnitudes, at most 128,
// whose signs are moved to x; one step fits.
constexpr int steps_of_2_bits = 4, steps_of_4_bits = 8, steps_of_5_bits = 4, steps_of_6_bits = 2, steps_of_7_bits = 1, steps_of_full_bytes = 1;

MR_INLINE __m256i widened(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

// Keeps a sum in its register: a compiler that sees a chain of exact additions makes a tree of it, and has no registers for its leaves.
MR_INLINE void keep(__m256i& v) { asm("" : "+x"(v)); }

// H halves of panel p, from `half` on, by C tokens.
template <Mode mode, int fit, int H, int C>
MR_INLINE void dot_halves(const Dot& a, int p, int half, Fetch& fetch) {
  constexpr int parts = parts_of(mode), steps = 8 / parts;
  constexpr bool wide = mode == Mode::halves_wide, full = fit == steps_of_full_bytes && !wide, mins = mode == Mode::mins || mode == Mode::nibbles, half_mins = mode == Mode::halves_mins;
  __m256 sum[H][C];
#pragma GCC unroll 2
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 6
    for (int c = 0; c < C; ++c) sum[h][c] = load_half(a, p, c, half + h);
  }
  const uint8_t *act = a.act, *w = a.w[p] + half * 32;
  const float *d = a.d[p] + half * 8, *m = a.m[p] + half * 8;
  const int64_t n = a.n, bias = a.bias;
  constexpr int each = mode == Mode::nibbles ? 2 : 1; // blocks that share bytes
  for (int64_t b = 0; b < n; b += each) {
#pragma GCC unroll 2
    for (int odd = 0; odd < each; ++odd, act += C * 64, d += parts * panel_rows, m += (half_mins ? parts : 1) * panel_rows) {
      fetch.ask();
#pragma GCC unroll 2
      for (int part = 0; part < parts; ++part) {
        __m256i dot[H][C];
#pragma GCC unroll 8
        for (int first = part * steps; first < (part + 1) * steps; first += fit) {
          __m256i pairs[H][C];
#pragma GCC unroll 8
          for (int g = first; g < first + fit; ++g) {
            __m256i weights[H], magnitudes[H];
#pragma GCC unroll 2
            for (int h = 0; h < H; ++h) {
              weights[h] = _mm256_load_si256(reinterpret_cast<const __m256i*>(w + g * 64 + h * 32));
              if constexpr (full) {
                weights[h] = _mm256_xor_si256(weights[h], _mm256_set1_epi8(-128));
                magnitudes[h] = _mm256_abs_epi8(weights[h]);
              }
              if constexpr (mode == Mode::nibbles) {
                if (odd != 0) weights[h] = _mm256_srli_epi16(weights[h], 4);
                weights[h] = _mm256_and_si256(weights[h], _mm256_set1_epi8(15));
              }
            }
#pragma GCC unroll 6
            for (int c = 0; c < C; ++c) {
              const __m256i x = broadcast(act + c * 64 + g * 4);
#pragma GCC unroll 2
              for (int h = 0; h < H; ++h) {
                const __m256i product = full ? _mm256_maddubs_epi16(magnitudes[h], _mm256_sign_epi8(x, weights[h]))
                                             : _mm256_maddubs_epi16(weights[h], x);
                pairs[h][c] = g == first ? product : _mm256_add_epi16(pairs[h][c], product);
                if (fit > 1) keep(pairs[h][c]);
              }
            }
          }
#pragma GCC unroll 2
          for (int h = 0; h < H; ++h) {
#pragma GCC unroll 6
            for (int c = 0; c < C; ++c) {
              const __m256i wide = widened(pairs[h][c]);
              dot[h][c] = first == part * steps ? wide : _mm256_add_epi32(dot[h][c], wide);
              keep(dot[h][c]);
            }
          }
        }
#pragma GCC unroll 6
        for (int c = 0; c < C; ++c) {
          const __m256 x_scale = broadcast_f32(act + c * 64 + __builtin_offsetof(ActBlock, d));
#pragma GCC unroll 2
          for (int h = 0; h < H; ++h) {
            if constexpr (!full && !mins && !half_mins) {
              const __m256i start = broadcast(act + c * 64 + bias + part * 4);
              dot[h][c] = _mm256_add_epi32(dot[h][c], wide ? _mm256_add_epi32(start, start) : start);
            }
            const __m256 scale = mode == Mode::bytes ? __m256(halves_at(a.f16[p] + b * 32 + (half + h) * 16))
                                                     : _mm256_load_ps(d + part * panel_rows + h * 8);
            const __m256 both = _mm256_mul_ps(scale, x_scale);
            sum[h][c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[h][c]), both, sum[h][c]);
          }
          if constexpr (half_mins) {
            const __m256 x_sum = _mm256_mul_ps(_mm256_cvtepi32_ps(broadcast(act + c * 64 + bias + part * 4)), x_scale);
#pragma GCC unroll 2
            for (int h = 0; h < H; ++h) sum[h][c] = _mm256_fmadd_ps(_mm256_load_ps(m + part * panel_rows + h * 8), x_sum, sum[h][c]);
          }
          if constexpr (mins) {
            const __m256 x_sum = broadcast_f32(act + c * 64 + __builtin_offsetof(ActBlock, s));
#pragma GCC unroll 2
            for (int h = 0; h < H; ++h) sum[h][c] = _mm256_fmadd_ps(_mm256_load_ps(m + h * 8), x_sum, sum[h][c]);
          }
        }
      }
      if (mode != Mode::nibbles || odd != 0) w += 512;
    }
  }
#pragma GCC unroll 2
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 6
    for (int c = 0; c < C; ++c) store_half(a, p, c, half + h, sum[h][c]);
  }
}

template <Mode mode, int fit, int C>
__attribute__((noinline)) void dot_int8_tile(int panels, const Dot& a) {
  constexpr int H = fit == steps_of_4_bits || C <= 3 ? 2 : 1;
  const int64_t visits = panels * (2 / H);
  Fetch fetch{a.fetch, (a.fetch_lines + visits - 1) / visits};
  for (int p = 0; p < panels && a.rows[p] > 0; ++p) {
    for (int half = 0; half < 2; half += H) dot_halves<mode, fit, H, C>(a, p, half, fetch);
  }
}

template <Mode mode, int fit>
void dot_int8_mode(int panels, int64_t width, const Dot& a) {
  switch (width) {
    case 1: return dot_int8_tile<mode, fit, 1>(panels, a);
    case 2: return dot_int8_tile<mode, fit, 2>(panels, a);
    case 3: return dot_int8_tile<mode, fit, 3>(panels, a);
    case 4: return dot_int8_tile<mode, fit, 4>(panels, a);
    case 5: return dot_int8_tile<mode, fit, 5>(panels, a);
    case 6: return dot_int8_tile<mode, fit, 6>(panels, a);
  }
}

MR_INLINE void dot_int8(Mode mode, int panels, int64_t width, const Dot& a) {
  switch (mode) {
    case Mode::plain:
      if (a.bits == 8) return dot_int8_mode<Mode::plain, steps_of_full_bytes>(panels, width, a);
      if (a.bits == 5) return dot_int8_mode<Mode::plain, steps_of_5_bits>(panels, width, a);
      return dot_int8_mode<Mode::plain, steps_of_4_bits>(panels, width, a);
    case Mode::mins:
      if (a.bits == 5) return dot_int8_mode<Mode::mins, steps_of_5_bits>(panels, width, a);
      return dot_int8_mode<Mode::mins, steps_of_4_bits>(panels, width, a);
    case Mode::halves: return dot_int8_mode<Mode::halves, steps_of_6_bits>(panels, width, a);
    case Mode::halves_wide: return dot_int8_mode<Mode::halves_wide, steps_of_7_bits>(panels, width, a);
    case Mode::halves_mins: return dot_int8_mode<Mode::halves_mins, steps_of_2_bits>(panels, width, a);
    case Mode::nibbles: return dot_int8_mode<Mode::nibbles, steps_of_4_bits>(panels, width, a);
    case Mode::bytes: return dot_int8_mode<Mode::bytes, steps_of_full_bytes>(panels, width, a);
  }
}
