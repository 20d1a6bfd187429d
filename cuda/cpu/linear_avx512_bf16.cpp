// Products of BF16 weights on AVX-512 BF16: 32 rows by 12 tokens of fp32 sums in registers, two inputs an instruction.
// vdpbf16ps adds the two products to a lane one after the other, rounds to nearest even, and treats inputs and results below
// 2^-126 as zero.
#if defined(__x86_64__)

#include "prefetch.h"

#pragma GCC optimize("fp-contract=off")
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized" // the compiler's own intrinsics begin from undefined registers
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,prefer-vector-width=512")

#include <immintrin.h>
#include <stdint.h>

#include <utility>

#include "linear_format.h"
#include "linear_kernels.h"

namespace mr::cpu {

namespace {

constexpr int lanes = 16;

#include "linear_vector.inl"
#include "linear_dot.inl"
#include "linear_avx512_common.inl"
#include "linear_tiles.inl"

// A whole stack, four chains, for few tokens.
MR_INLINE int64_t wide_bf16(int64_t tokens) { return tokens <= 6 ? 4 : 2; }

// bf16 of 16 numbers, rounded to nearest even, in the low halves of the lanes; a NaN stays one.
MR_INLINE __m512i round_bf16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x), one = _mm512_set1_epi32(1);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 none = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_mask_mov_epi32(rounded, none, _mm512_set1_epi32(0x7fc0));
}

// Pairs of inputs of one token, pair after pair at a distance of `width`.
MR_INLINE void pack_pairs(const float* x, int64_t n, int64_t width, uint32_t* out) {
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t left = min_of(16, n - i);
    alignas(64) uint32_t one[16];
    _mm512_store_si512(one, round_bf16(_mm512_maskz_loadu_ps(__mmask16((1u << left) - 1), x + i)));
    for (int64_t k = 0; k < left; k += 2) out[(i + k) / 2 * width] = one[k] | one[k + 1] << 16; // an odd end pairs with zero
  }
}

void prepare_bf16(const float* x, int64_t ldx, int64_t in, int64_t tokens, int64_t t0, int64_t t1, uint8_t* act) {
  uint32_t* pairs = reinterpret_cast<uint32_t*>(act);
  for (int64_t t = t0; t < t1; ++t) {
    const Tile tile = tile_of(f32_tile, tokens, t);
    for (int64_t k = 0; k < in; k += float_group) {
      const int64_t n = min_of(float_group, in - k);
      pack_pairs(x + t * ldx + k, n, tile.width, pairs + k / 2 * tokens + tile.first * ((n + 1) / 2) + (t - tile.first));
    }
  }
}

template <int P, int C>
void dot_bf16_tile(const Dot& a) {
  constexpr int step = 2;
  __m512 run[P][C];
  const uint8_t *x = a.act, *w[P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    w[p] = a.w[p];
#pragma GCC unroll 12
    for (int c = 0; c < C; ++c) run[p][c] = _mm512_setzero_ps();
  }
  const auto pair = [&](int64_t k, const uint8_t* at) {
    __m512bh weights[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) weights[p] = (__m512bh)_mm512_load_si512(w[p] + k * 64);
#pragma GCC unroll 12
    for (int c = 0; c < C; ++c) {
      const __m512bh v = (__m512bh)broadcast(at + c * 4);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) run[p][c] = _mm512_dpbf16_ps(run[p][c], weights[p], v);
    }
  };
  const bool fetching = a.fetch_lines != 0;
  const int64_t n = a.n;
  int64_t k = 0;
  for (; k + step <= n; k += step, x += step * C * 4) {
    if (fetching) {
#pragma GCC unroll 2
      for (int i = 0; i < step; ++i) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) prefetch(a.fetch + ((k + i) * P + p) * 64);
      }
    }
#pragma GCC unroll 2
    for (int i = 0; i < step; ++i) pair(k + i, x + i * C * 4);
  }
  if (k < n) pair(k, x);
  if (!a.first) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 12
      for (int c = 0; c < C; ++c) run[p][c] = _mm512_add_ps(_mm512_load_ps(a.sums[p] + c * panel_rows), run[p][c]);
    }
  }
  store_sums(a, run);
}

void dot_bf16(int panels, int64_t width, const Dot& a) {
  if (panels == 4) {
    switch (width) {
      case 1: return dot_bf16_tile<4, 1>(a);
      case 2: return dot_bf16_tile<4, 2>(a);
      case 3: return dot_bf16_tile<4, 3>(a);
      case 4: return dot_bf16_tile<4, 4>(a);
      case 5: return dot_bf16_tile<4, 5>(a);
      case 6: return dot_bf16_tile<4, 6>(a);
    }
  }
  switch (width) { // more than six tokens never leave a tile of fewer than six
    case 6: return dot_bf16_tile<2, 6>(a);
    case 7: return dot_bf16_tile<2, 7>(a);
    case 8: return dot_bf16_tile<2, 8>(a);
    case 9: return dot_bf16_tile<2, 9>(a);
    case 10: return dot_bf16_tile<2, 10>(a);
    case 11: return dot_bf16_tile<2, 11>(a);
    case 12: return dot_bf16_tile<2, 12>(a);
  }
}

void multiply_bf16(const Matrix& m, const uint8_t* act, int64_t tokens, float* y, int64_t ldy, int64_t panel0,
                   int64_t panel1, const uint8_t* then) {
  const auto expand_panel = [](Dot& a, int64_t i, const uint8_t* group) { a.w[i] = group; };
  each_tile(m, act, tokens, y, ldy, panel0, panel1, then, wide_bf16(tokens), f32_tile, 2, int64_t(sizeof(uint32_t)), 1,
            expand_panel, [](int panels, int64_t width, const Dot& a) { dot_bf16(panels, width, a); });
}

} // namespace

const Kernels kernels_avx512bf16 = {prepare_bf16, multiply_bf16};

} // namespace mr::cpu

#endif
