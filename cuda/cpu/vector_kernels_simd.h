// vector_kernels_simd: the vector kernels of one path. Included once by each file that defines MR_VEC_WIDTH; every name is local
// to that file.
#pragma once

#include "vecops_simd.h"
#include "vector_kernels.h"

namespace mr::cpu {

// Constant-initialised: nothing of a raised path runs before it is chosen.
extern const VectorKernels vector_kernels_portable;
#if defined(__x86_64__)
extern const VectorKernels vector_kernels_avx2;
extern const VectorKernels vector_kernels_avx512;
#endif

namespace {

// Registers hold the sums of R vectors of rows by C codewords, R vectors of a tile and one broadcast.
#if MR_VEC_WIDTH == 16
constexpr int R = 3, C = 8;
#elif MR_VEC_WIDTH == 8
constexpr int R = 3, C = 4;
#else
constexpr int R = 2, C = 4;
#endif
constexpr int kTile = R * W;
static_assert(kTile <= kMostTileRows && C <= kMostPanelCodewords, "");

typedef float FC __attribute__((vector_size(4 * C)));
typedef float FCMemory __attribute__((vector_size(4 * C), aligned(4), may_alias));
typedef uint8_t VB __attribute__((vector_size(W)));
typedef uint8_t VBMemory __attribute__((vector_size(W), aligned(1), may_alias));
typedef int8_t VSBMemory __attribute__((vector_size(W), aligned(1), may_alias));
typedef int32_t VIMemory __attribute__((vector_size(4 * W), aligned(4), may_alias));

// ---- elements -----------------------------------------------------------------------------------------------------

struct StoredU8 {
  typedef uint8_t Element;
  static MR_INLINE VF load(const uint8_t* p) {
    return __builtin_convertvector(__builtin_convertvector(*reinterpret_cast<const VBMemory*>(p), VI), VF);
  }
};

struct StoredI8 {
  typedef uint8_t Element;
  static MR_INLINE VF load(const uint8_t* p) {
    return __builtin_convertvector(__builtin_convertvector(*reinterpret_cast<const VSBMemory*>(p), VI), VF);
  }
};

template <class Stored>
MR_INLINE void decode_as(const void* from, int64_t n, float* to) {
  typedef typename Stored::Element Element;
  const uint8_t* in = static_cast<const uint8_t*>(from);
  int64_t i = 0;
  for (; i + W <= n; i += W) store(to + i, Stored::load(in + i * int64_t(sizeof(Element))));
  if (i == n) return;
  uint8_t rest[W * sizeof(Element)] = {};
  __builtin_memcpy(rest, in + i * int64_t(sizeof(Element)), size_t(n - i) * sizeof(Element));
  store_some(to + i, n - i, Stored::load(rest));
}

void decode(int32_t type, const void* from, int64_t n, float* to) {
  switch (type) {
    case MR_VECTOR_F32: __builtin_memcpy(to, from, size_t(n) * 4); return;
    case MR_VECTOR_F16: decode_as<StoredF16>(from, n, to); return;
    case MR_VECTOR_BF16: decode_as<StoredBF16>(from, n, to); return;
    case MR_VECTOR_U8: decode_as<StoredU8>(from, n, to); return;
    default: decode_as<StoredI8>(from, n, to); return;
  }
}

// The largest magnitude's bits: exponents that are all ones are NaN or infinite.
template <class T>
MR_INLINE bool below(const void* from, int64_t n, T mask, T infinity) {
  const uint8_t* in = static_cast<const uint8_t*>(from);
  T most = 0;
  for (int64_t i = 0; i < n; ++i) {
    T bits;
    __builtin_memcpy(&bits, in + i * int64_t(sizeof bits), sizeof bits);
    bits &= mask;
    most = bits > most ? bits : most;
  }
  return most < infinity;
}

bool finite(int32_t type, const void* from, int64_t n) {
  switch (type) {
    case MR_VECTOR_F32: return below<int32_t>(from, n, 0x7fffffff, 0x7f800000);
    case MR_VECTOR_F16: return below<int16_t>(from, n, 0x7fff, 0x7c00);
    case MR_VECTOR_BF16: return below<int16_t>(from, n, 0x7fff, 0x7f80);
    default: return true;
  }
}

void largest(const float* x, int64_t n, float* to) {
  for (int64_t j = 0; j < n; ++j) {
    const float a = __builtin_fabsf(x[j]);
    to[j] = a > to[j] ? a : to[j];
  }
}

// ---- the fast pass --------------------------------------------------------------------------------------------------

#if MR_VEC_WIDTH == 16
constexpr VI kLow = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
constexpr VI kHigh = {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
#elif MR_VEC_WIDTH == 8
constexpr VI kLow = {0, 8, 1, 9, 2, 10, 3, 11};
constexpr VI kHigh = {4, 12, 5, 13, 6, 14, 7, 15};
#else
constexpr VI kLow = {0, 4, 1, 5};
constexpr VI kHigh = {2, 6, 3, 7};
#endif

// Rows become columns: each stage interleaves vectors half of all apart, which turns the bits of an element's place by one.
MR_INLINE void transpose(VF (&v)[W]) {
#pragma GCC unroll 4
  for (int stage = 1; stage < W; stage *= 2) {
    VF next[W];
#pragma GCC unroll 8
    for (int i = 0; i < W / 2; ++i) {
      next[2 * i] = __builtin_shuffle(v[i], v[i + W / 2], kLow);
      next[2 * i + 1] = __builtin_shuffle(v[i], v[i + W / 2], kHigh);
    }
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) v[i] = next[i];
  }
}

// The first n < W floats, the other lanes 0.
MR_INLINE VF load_first(const float* p, int64_t n) {
#if MR_VEC_WIDTH == 16
  return _mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p);
#elif MR_VEC_WIDTH == 8
  const VI lane = {0, 1, 2, 3, 4, 5, 6, 7};
  return _mm256_maskload_ps(p, (__m256i)(lane < splat_int(int32_t(n))));
#else
  return load_some(p, n, 0);
#endif
}

void pack(const float* const* rows, int64_t width, const float* center, float* x, float* squares) {
  for (int r = 0; r < R; ++r) {
    float* const to = x + r * W;
    for (int64_t j = 0; j < width; j += W) {
      VF v[W];
      if (width - j >= W) {
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) v[i] = load(rows[r * W + i] + j) - load(center + j);
        transpose(v);
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) store(to + (j + i) * kTile, v[i]);
      } else {
        const int64_t n = width - j;
        const VF middle = load_first(center + j, n);
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) v[i] = load_first(rows[r * W + i] + j, n) - middle;
        transpose(v);
        for (int i = 0; i < n; ++i) store(to + (j + i) * kTile, v[i]);
      }
    }
    VF all = VF{};
    for (int64_t block = 0; block < width; block += kScoreBlock) {
      const int64_t end = width - block < kScoreBlock ? width : block + kScoreBlock;
      VF sum = VF{};
      for (int64_t j = block; j < end; ++j) {
        const VF v = load(to + j * kTile);
        sum = fma(v, v, sum);
      }
      all += sum;
    }
    store(squares + r * W, all);
  }
}

MR_INLINE VF most_of(VF a, VF b) {
#if MR_VEC_WIDTH == 16
  return _mm512_max_ps(a, b);
#elif MR_VEC_WIDTH == 8
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}
MR_INLINE VF least_of(VF a, VF b) {
#if MR_VEC_WIDTH == 16
  return _mm512_min_ps(a, b);
#elif MR_VEC_WIDTH == 8
  return _mm256_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}

// sum[c][r] += products of columns begin .. end - 1.
MR_INLINE void add_products(const float* x, const float* panel, int64_t begin, int64_t end, VF (&sum)[C][R]) {
  for (int64_t j = begin; j < end; ++j) {
    VF a[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) a[r] = load(x + j * kTile + r * W);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const VF b = splat(panel[j * C + c]);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[c][r] = fma(a[r], b, sum[c][r]);
    }
  }
}

MR_INLINE void keep_best(const VF (&sum)[C][R], int32_t first, VF (&best)[R], VF (&second)[R], VI (&id)[R]) {
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    const VI codeword = splat_int(first + c);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const VF s = sum[c][r];
      id[r] = s > best[r] ? codeword : id[r];
      second[r] = most_of(second[r], least_of(s, best[r]));
      best[r] = most_of(best[r], s);
    }
  }
}

void scan(const float* x, int64_t width, const float* panels, const float* halves, int64_t first, int64_t count, float* best,
          float* second, int32_t* id) {
  VF top[R], next[R];
  VI at[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    top[r] = load(best + r * W);
    next[r] = load(second + r * W);
    at[r] = *reinterpret_cast<const VIMemory*>(id + r * W);
  }
  const int64_t head = width < kScoreBlock ? width : kScoreBlock;
  for (int64_t p = 0; p < count; ++p) {
    const float* const panel = panels + p * width * C;
    VF sum[C][R];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const VF start = splat(-halves[p * C + c]);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[c][r] = start;
    }
    add_products(x, panel, 0, head, sum);
    for (int64_t begin = head; begin < width; begin += kScoreBlock) {
      VF block[C][R] = {};
      add_products(x, panel, begin, width - begin < kScoreBlock ? width : begin + kScoreBlock, block);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) sum[c][r] += block[c][r];
    }
    keep_best(sum, int32_t(first + p * C), top, next, at);
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    store(best + r * W, top[r]);
    store(second + r * W, next[r]);
    *reinterpret_cast<VIMemory*>(id + r * W) = at[r];
  }
}

MR_INLINE VF root(VF v) {
#if MR_VEC_WIDTH == 16
  return _mm512_sqrt_ps(v);
#elif MR_VEC_WIDTH == 8
  return _mm256_sqrt_ps(v);
#else
  for (int i = 0; i < W; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
#endif
}

void limit(const Margin& margin, const float* best, const float* squares, int64_t n, float* limits) {
  const VI sign = splat_int(INT32_MAX);
  for (int64_t i = 0; i < n; i += W) {
    const VF top = load(best + i);
    const VF length = root(load(squares + i) * kMarginUp + kLeastSquare) * kMarginUp, both = length + margin.radius;
    const VF below = (length * margin.slope + margin.base + both * both * margin.curve) * kMarginUp;
    const VF from = top - below - (VF)((VI)top & sign) * 0x1p-22f;
    store(limits + i, choose(both < splat(kMostLength), from, splat(-__builtin_inff())));
  }
}

MR_INLINE FC fma_some(float a, const float* b, FC c) {
  const FC wide = a - FC{}, by = *reinterpret_cast<const FCMemory*>(b);
#if MR_VEC_WIDTH == 16
  return _mm256_fmadd_ps(wide, by, c);
#elif MR_VEC_WIDTH == 8
  return _mm_fmadd_ps(wide, by, c);
#else
  return wide * by + c;
#endif
}

// P panels at once, so that their sums do not wait for each other.
template <int P>
MR_INLINE void score_panels(const float* x, int64_t width, const float* panels, const float* halves, float* scores) {
  FC all[P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) all[p] = -*reinterpret_cast<const FCMemory*>(halves + p * C);
  for (int64_t begin = 0; begin < width; begin += kScoreBlock) {
    const int64_t end = width - begin < kScoreBlock ? width : begin + kScoreBlock;
    FC sum[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) sum[p] = begin == 0 ? all[p] : FC{};
    for (int64_t j = begin; j < end; ++j)
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) sum[p] = fma_some(x[j], panels + (p * width + j) * C, sum[p]);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) all[p] = begin == 0 ? sum[p] : all[p] + sum[p];
  }
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) *reinterpret_cast<FCMemory*>(scores + p * C) = all[p];
}

void score(const float* x, int64_t width, const float* panels, const float* halves, int64_t count, float* scores) {
  int64_t p = 0;
  for (; p + 4 <= count; p += 4) score_panels<4>(x, width, panels + p * width * C, halves + p * C, scores + p * C);
  for (; p < count; ++p) score_panels<1>(x, width, panels + p * width * C, halves + p * C, scores + p * C);
}

// ---- exact sums -----------------------------------------------------------------------------------------------------

// Eight doubles: the partial sums and the addends.
#if MR_VEC_WIDTH == 16
struct Eight {
  __m512d v;
};
MR_INLINE Eight nothing() { return {_mm512_setzero_pd()}; }
MR_INLINE Eight eight(const float* p) { return {_mm512_cvtps_pd(_mm256_loadu_ps(p))}; }
MR_INLINE Eight eight_some(const float* p, int64_t n) {
  return {_mm512_cvtps_pd(_mm256_maskz_loadu_ps(__mmask8((1u << n) - 1), p))};
}
MR_INLINE Eight operator+(Eight a, Eight b) { return {_mm512_add_pd(a.v, b.v)}; }
MR_INLINE Eight operator-(Eight a, Eight b) { return {_mm512_sub_pd(a.v, b.v)}; }
MR_INLINE Eight operator*(Eight a, Eight b) { return {_mm512_mul_pd(a.v, b.v)}; }
MR_INLINE __m256d halves_added(Eight a) {
  return _mm256_add_pd(_mm512_maskz_extractf64x4_pd(0xff, a.v, 0), _mm512_maskz_extractf64x4_pd(0xff, a.v, 1));
}
#elif MR_VEC_WIDTH == 8
struct Eight {
  __m256d low, high;
};
MR_INLINE Eight nothing() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
MR_INLINE Eight eight(const float* p) { return {_mm256_cvtps_pd(_mm_loadu_ps(p)), _mm256_cvtps_pd(_mm_loadu_ps(p + 4))}; }
MR_INLINE Eight eight_some(const float* p, int64_t n) {
  const __m256 v = load_first(p, n);
  return {_mm256_cvtps_pd(_mm256_castps256_ps128(v)), _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1))};
}
MR_INLINE Eight operator+(Eight a, Eight b) { return {_mm256_add_pd(a.low, b.low), _mm256_add_pd(a.high, b.high)}; }
MR_INLINE Eight operator-(Eight a, Eight b) { return {_mm256_sub_pd(a.low, b.low), _mm256_sub_pd(a.high, b.high)}; }
MR_INLINE Eight operator*(Eight a, Eight b) { return {_mm256_mul_pd(a.low, b.low), _mm256_mul_pd(a.high, b.high)}; }
MR_INLINE __m256d halves_added(Eight a) { return _mm256_add_pd(a.low, a.high); }
#else
typedef double D2 __attribute__((vector_size(16)));
struct Eight {
  D2 v[4];
};
MR_INLINE Eight nothing() { return {}; }
MR_INLINE Eight eight(const float* p) {
  Eight e;
  for (int i = 0; i < 4; ++i) e.v[i] = D2{double(p[2 * i]), double(p[2 * i + 1])};
  return e;
}
MR_INLINE Eight eight_some(const float* p, int64_t n) {
  float lanes[8] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return eight(lanes);
}
MR_INLINE Eight operator+(Eight a, Eight b) { return {{a.v[0] + b.v[0], a.v[1] + b.v[1], a.v[2] + b.v[2], a.v[3] + b.v[3]}}; }
MR_INLINE Eight operator-(Eight a, Eight b) { return {{a.v[0] - b.v[0], a.v[1] - b.v[1], a.v[2] - b.v[2], a.v[3] - b.v[3]}}; }
MR_INLINE Eight operator*(Eight a, Eight b) { return {{a.v[0] * b.v[0], a.v[1] * b.v[1], a.v[2] * b.v[2], a.v[3] * b.v[3]}}; }
#endif

// Sum i and sum i + 4, of these i and i + 2, of these both.
MR_INLINE double fold(Eight a) {
#if MR_VEC_WIDTH >= 8
  const __m256d four = halves_added(a);
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
#else
  const D2 two = (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
  return two[0] + two[1];
#endif
}

double squared(const float* x, const float* c, int64_t n) {
  Eight sum = nothing();
  int64_t j = 0;
  for (; j + 8 <= n; j += 8) {
    const Eight t = eight(x + j) - eight(c + j);
    sum = sum + t * t;
  }
  if (j < n) {
    const Eight t = eight_some(x + j, n - j) - eight_some(c + j, n - j);
    sum = sum + t * t;
  }
  return fold(sum);
}

double dot(const float* x, const float* c, int64_t n) {
  Eight sum = nothing();
  int64_t j = 0;
  for (; j + 8 <= n; j += 8) sum = sum + eight(x + j) * eight(c + j);
  if (j < n) sum = sum + eight_some(x + j, n - j) * eight_some(c + j, n - j);
  return fold(sum);
}

MR_INLINE int64_t nearest_integer(double v) {
#if defined(__x86_64__)
  return _mm_cvtsd_si64(_mm_set_sd(v));
#else
  return __builtin_llrint(v);
#endif
}

void add_fixed(const float* x, const double* scale, int64_t n, int64_t* sums) {
  int64_t j = 0;
#if MR_VEC_WIDTH == 16
  for (; j + 8 <= n; j += 8) {
    const __m512d v = _mm512_mul_pd(_mm512_cvtps_pd(_mm256_loadu_ps(x + j)), _mm512_loadu_pd(scale + j));
    _mm512_storeu_si512(sums + j, _mm512_add_epi64(_mm512_loadu_si512(sums + j), _mm512_cvtpd_epi64(v)));
  }
#endif
  for (; j < n; ++j) sums[j] += nearest_integer(double(x[j]) * scale[j]);
}

constexpr VectorKernels vector_table() {
  return VectorKernels{kTile, C, decode, finite, largest, pack, scan, limit, score, squared, dot, add_fixed};
}

}  // namespace
}  // namespace mr::cpu
