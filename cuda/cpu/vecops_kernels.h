// vecops_kernels: the elementwise and row operations of VecOps for the path of the file that includes it.
#pragma once

#include "vecops.h"
#include "vecops_simd.h"

namespace mr::cpu {
namespace {

// Applies f to vectors of a (and b); the rest goes through zero-filled lanes.
template <class F>
MR_INLINE void map(const float* a, int64_t n, float* out, F f) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store(out + i, f(load(a + i)));
  if (i < n) store_some(out + i, n - i, f(load_some(a + i, n - i, 0)));
}
template <class F>
MR_INLINE void map(const float* a, const float* b, int64_t n, float* out, F f) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store(out + i, f(load(a + i), load(b + i)));
  if (i < n) store_some(out + i, n - i, f(load_some(a + i, n - i, 0), load_some(b + i, n - i, 0)));
}

MR_INLINE VF silu_of(VF a) { return a / (1.0f + exp(-a)); }
// 2 sqrt(2/pi) = 1.5957692
MR_INLINE VF gelu_of(VF a) { return a / (1.0f + exp(-1.5957691216f * (a + 0.044715f * a * a * a))); }

MR_INLINE VF clamp_swish_of(VF a) {
  const VF y = choose(a > splat(7), splat(7), a);
  return y / (1.0f + exp(-1.702f * y));
}
MR_INLINE VF clamp_up_of(VF b) { return choose(b > splat(7), splat(7), choose(b < splat(-7), splat(-7), b)); }  // NaN stays

// Named functions rather than lambdas: a lambda without captures also becomes a plain function, which GCC compiles
// without the path's instructions.
struct Silu { MR_INLINE VF operator()(VF x) const { return silu_of(x); } };
struct Swiglu { MR_INLINE VF operator()(VF x, VF y) const { return silu_of(x) * y; } };
struct Geglu { MR_INLINE VF operator()(VF x, VF y) const { return gelu_of(x) * y; } };
struct ClampedGlu { MR_INLINE VF operator()(VF x, VF y) const { return clamp_swish_of(x) * (1.0f + clamp_up_of(y)); } };
struct Add { MR_INLINE VF operator()(VF x, VF y) const { return x + y; } };
struct Mul { MR_INLINE VF operator()(VF x, VF y) const { return x * y; } };
struct Exp { MR_INLINE VF operator()(VF x) const { return exp(x); } };

void silu(const float* a, int64_t n, float* out) { map(a, n, out, Silu{}); }
void swiglu(const float* a, const float* b, int64_t n, float* out) { map(a, b, n, out, Swiglu{}); }
void geglu(const float* a, const float* b, int64_t n, float* out) { map(a, b, n, out, Geglu{}); }
void clamped_glu(const float* a, const float* b, int64_t n, float* out) { map(a, b, n, out, ClampedGlu{}); }
void add(const float* a, const float* b, int64_t n, float* out) { map(a, b, n, out, Add{}); }
void mul(const float* a, const float* b, int64_t n, float* out) { map(a, b, n, out, Mul{}); }
void exp_row(const float* a, int64_t n, float* out) { map(a, n, out, Exp{}); }
void scale(const float* a, float factor, int64_t n, float* out) {
  const VF s = splat(factor);
  map(a, n, out, [s](VF x) { return x * s; });
}
void cap(const float* a, float limit, int64_t n, float* out) {
  const float inverse = 1.0f / limit;
  map(a, n, out, [limit, inverse](VF x) { return cap_of(x, limit, inverse); });
}
void rms_norm(const float* a, const float* weight, float eps, int64_t n, float* out) {
  VF sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W)
    for (int k = 0; k < 4; ++k) {
      const VF x = load(a + i + k * W);
      sums[k] = fma(x, x, sums[k]);
    }
  for (; i < n; i += W) {
    const VF x = n - i >= W ? load(a + i) : load_some(a + i, n - i, 0);
    sums[0] = fma(x, x, sums[0]);
  }
  const float square = fold_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  const VF factor = splat(1.0f / __builtin_sqrtf(square / static_cast<float>(n) + eps));
  if (weight == nullptr) map(a, n, out, [factor](VF x) { return x * factor; });
  else map(a, weight, n, out, [factor](VF x, VF w) { return x * factor * w; });
}

float greatest(const float* x, int64_t n) {
  VF top = splat(-__builtin_inff());
  VI nan = {};
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    const VF v = load(x + i);
    nan |= v != v;
    top = greater_of(v, top);
  }
  if (i < n) {
    const VF v = load_some(x + i, n - i, -__builtin_inff());
    nan |= v != v;
    top = greater_of(v, top);
  }
  return any(nan) ? __builtin_nanf("") : fold_max(top);
}

void softmax(const float* a, int64_t n, float* out) {
  const float top = greatest(a, n);
  const VF base = splat(top == -__builtin_inff() ? 0.0f : top);
  VF sum = {};
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    const VF e = exp(load(a + i) - base);
    store(out + i, e);
    sum += e;
  }
  if (i < n) {
    const VF e = exp(load_some(a + i, n - i, -__builtin_inff()) - base);
    store_some(out + i, n - i, e);
    sum += e;
  }
  const float total = fold_sum(sum);
  const VF divisor = splat(total == 0 ? 1.0f : total);
  map(out, n, out, [divisor](VF e) { return e / divisor; });
}

// turns, NEOX: dims/2 cosines, then dims/2 sines. NORM: (c0, c0, c1, c1, ...), then (-s0, s0, -s1, s1, ...).
void rope(float* head, const float* turns, int32_t dims, int32_t style) {
  if (style == MR_ROPE_NEOX) {
    const int32_t half = dims / 2;
    const float* cosines = turns, *sines = turns + half;
    int32_t i = 0;
    for (; i + W <= half; i += W) {
      const VF x = load(head + i), y = load(head + half + i), c = load(cosines + i), s = load(sines + i);
      store(head + i, x * c - y * s);
      store(head + half + i, x * s + y * c);
    }
    for (; i < half; ++i) {
      const float x = head[i], y = head[half + i], c = cosines[i], s = sines[i];
      head[i] = x * c - y * s;
      head[half + i] = x * s + y * c;
    }
    return;
  }
  VI swap;
  for (int i = 0; i < W; ++i) swap[i] = i ^ 1;
  int32_t i = 0;
  for (; i + W <= dims; i += W) {
    const VF x = load(head + i);
    store(head + i, x * load(turns + i) + __builtin_shuffle(x, swap) * load(turns + dims + i));
  }
  for (; i < dims; i += 2) {
    const float x = head[i], y = head[i + 1], c = turns[i], s = turns[dims + i + 1];
    head[i] = x * c - y * s;
    head[i + 1] = y * c + x * s;
  }
}

}  // namespace
}  // namespace mr::cpu
