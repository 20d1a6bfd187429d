// sampler_kernels: the passes of VecOps over a row of logits for the path of the file that includes it.
#pragma once

#include "vecops.h"
#include "vecops_simd.h"

namespace mr::cpu {
namespace {

template <class Vector, class Scalar>
MR_INLINE int64_t find_first(const float* x, int64_t i, int64_t n, Vector vector, Scalar scalar) {
  for (; i + 4 * W <= n; i += 4 * W) {
    const VI hit = vector(load(x + i)) | vector(load(x + i + W)) | vector(load(x + i + 2 * W)) |
                   vector(load(x + i + 3 * W));
    if (any(hit)) break;
  }
  for (; i < n; ++i)
    if (scalar(x[i])) return i;
  return n;
}

int64_t find_greater(const float* x, int64_t from, int64_t n, float bound) {
  const VF b = splat(bound);
  return find_first(x, from, n, [b](VF v) { return v > b; }, [bound](float v) { return v > bound; });
}

int64_t find_at_least(const float* x, int64_t n, float bound) {
  const VF b = splat(bound);
  return find_first(x, 0, n, [b](VF v) { return v >= b; }, [bound](float v) { return v >= bound; });
}

template <class Vector, class Scalar>
MR_INLINE int64_t count_where(const float* x, int64_t n, Vector vector, Scalar scalar) {
  VI count = {};  // minus the number of hits in each lane
  int64_t i = 0, total = 0;
  for (; i + W <= n; i += W) count += vector(load(x + i));
  for (int lane = 0; lane < W; ++lane) total -= count[lane];
  for (; i < n; ++i) total += scalar(x[i]);
  return total;
}

int64_t count_greater(const float* x, int64_t n, float bound) {
  const VF b = splat(bound);
  return count_where(x, n, [b](VF v) { return v > b; }, [bound](float v) { return v > bound; });
}

int64_t count_equal(const float* x, int64_t n, float value) {
  const VF b = splat(value);
  return count_where(x, n, [b](VF v) { return v == b; }, [value](float v) { return v == value; });
}

double sum_exp(const float* x, int64_t n, float top) {
  const VF base = splat(top);
  VD low = {}, high = {};
  float terms[W];
  for (int64_t i = 0; i < n; i += W) {
    const VF v = n - i >= W ? load(x + i) : load_some(x + i, n - i, -__builtin_inff());
    store(terms, exp(v - base));
    low += widen(terms);
    high += widen(terms + W / 2);
  }
  return fold_sum(low + high);
}

void weights(const float* x, int64_t n, float top, float temperature, float* out) {
  const VF base = splat(top), divisor = splat(temperature);
  int64_t i = 0;
  const auto weight = [base, divisor](VF v) { return choose(v == base, splat(1.0f), exp((v - base) / divisor)); };
  for (; i + W <= n; i += W) store(out + i, weight(load(x + i)));
  if (i < n) store_some(out + i, n - i, weight(load_some(x + i, n - i, -__builtin_inff())));
}

uint64_t mass_at_least(const float* w, int64_t n, float floor) {
  const double round = 4503599627370496.0;  // 2^52
  const VD unit = splat_double(mass_unit), magic = splat_double(round), lowest = splat_double(floor);
  VL sums[2] = {};
  int64_t i = 0;
  for (; i + W <= n; i += W)
    for (int k = 0; k < 2; ++k) {
      const VD v = widen(w + i + k * (W / 2));
      const VL fixed = (VL)(v * unit + magic) - (VL)magic;
      sums[k] += fixed & (VL)(v >= lowest);
    }
  uint64_t total = fold_sum(sums[0] + sums[1]);
  for (; i < n; ++i)
    if (w[i] >= floor) total += mass(w[i]);
  return total;
}

void mask(const float* x, const uint32_t* words, int64_t n, float* out) {
  VU bit;
  for (int i = 0; i < W; ++i) bit[i] = 1u << i;
  const VF forbidden = splat(-__builtin_inff());
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    const uint32_t bits = words[i / 32] >> (i % 32);
    const VU set = (bits - VU{}) & bit;
    store(out + i, choose((VI)(set != VU{}), load(x + i), forbidden));
  }
  for (; i < n; ++i) out[i] = words[i / 32] >> (i % 32) & 1u ? x[i] : -__builtin_inff();
}

}  // namespace
}  // namespace mr::cpu
