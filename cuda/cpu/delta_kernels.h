// delta_kernels: the vector operations of layers that carry a state, for the path of the file that includes it.
//
// The columns of S do not depend on each other, and a column's sums over the keys run in a fixed order. So a state has the same bits
// whether its positions are computed one at a time or many.
#pragma once

#include "vecops.h"
#include "vecops_simd.h"

namespace mr::cpu {
namespace {

// Reads and writes W floats, or the first n.
struct WholeVector {
  static MR_INLINE VF read(const float* p, int64_t) { return load(p); }
  static MR_INLINE void write(float* p, int64_t, VF v) { store(p, v); }
};
struct PartVector {
  static MR_INLINE VF read(const float* p, int64_t n) { return load_some(p, n, 0); }
  static MR_INLINE void write(float* p, int64_t n, VF v) { store_some(p, n, v); }
};

template <class Vector>
MR_INLINE VF convolve_columns(const float* const* rows, const float* taps, int32_t count, int64_t width, int64_t at, int64_t n) {
  VF sum = {};
  for (int32_t j = 0; j < count; ++j)
    if (rows[j] != nullptr) sum = fma(Vector::read(taps + j * width + at, n), Vector::read(rows[j] + at, n), sum);
  return sum;
}

void convolve(const float* const* rows, const float* taps, int32_t count, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store(out + i, convolve_columns<WholeVector>(rows, taps, count, n, i, W));
  if (i < n) store_some(out + i, n - i, convolve_columns<PartVector>(rows, taps, count, n, i, n - i));
}

void unit(const float* a, float factor, int64_t n, float* out) {
  VF sum = {};
  int64_t i = 0;
  for (; i < n; i += W) {
    const VF x = n - i >= W ? load(a + i) : load_some(a + i, n - i, 0);
    sum = fma(x, x, sum);
  }
  const VF by = splat(factor / __builtin_sqrtf(fold_sum(sum) + 1e-6f));
  for (i = 0; i + W <= n; i += W) store(out + i, load(a + i) * by);
  if (i < n) store_some(out + i, n - i, load_some(a + i, n - i, 0) * by);
}

// All positions of kVectors * W columns of S, of which n are there: they stay in the nearest cache. Sums run over the even and over the
// odd keys, which hides the latency of the additions.
template <int kVectors, class Vector>
MR_INLINE void delta_columns(const DeltaArgs& a, int64_t at, int64_t n) {
  float* const s = a.s + at;
  for (int64_t t = 0; t < a.count; ++t) {
    const float *const q = a.q + t * a.stride, *const k = a.k + t * a.stride, *const v = a.v + t * a.stride + at;
    const VF decay = splat(a.decay[t]), beta = splat(a.beta[t]);
    VF sum[2][kVectors] = {};
    for (int32_t i = 0; i < a.key_dim; ++i)
      for (int c = 0; c < kVectors; ++c)
        sum[i & 1][c] = fma(splat(k[i]), Vector::read(s + int64_t{i} * a.value_dim + c * W, n), sum[i & 1][c]);
    VF d[kVectors], out[2][kVectors] = {};
    for (int c = 0; c < kVectors; ++c) d[c] = (Vector::read(v + c * W, n) - decay * (sum[0][c] + sum[1][c])) * beta;
    for (int32_t i = 0; i < a.key_dim; ++i) {
      float* const row = s + int64_t{i} * a.value_dim;
      for (int c = 0; c < kVectors; ++c) {
        const VF next = fma(splat(k[i]), d[c], decay * Vector::read(row + c * W, n));
        Vector::write(row + c * W, n, next);
        out[i & 1][c] = fma(splat(q[i]), next, out[i & 1][c]);
      }
    }
    for (int c = 0; c < kVectors; ++c) Vector::write(a.out + t * a.out_stride + at + c * W, n, out[0][c] + out[1][c]);
  }
}

void delta(const DeltaArgs& a) {
  int64_t at = 0;
  for (; at + 4 * W <= a.value_dim; at += 4 * W) delta_columns<4, WholeVector>(a, at, W);
  for (; at + W <= a.value_dim; at += W) delta_columns<1, WholeVector>(a, at, W);
  if (at < a.value_dim) delta_columns<1, PartVector>(a, at, a.value_dim - at);
}

}  // namespace
}  // namespace mr::cpu
