// sampler_weights: what tokens weigh, as integers whose sums are exact in any order. The bits are those of the CPU engine;
// the ways to them are shorter, because logits are never above the greatest and what is far below it weighs nothing.
#pragma once

#include <cfloat>

#include "kernels/sampler_row.cuh"

namespace mr::cuda {

// Beyond this distance e^-distance rounds to 0 in units of 2^-44.
constexpr float kFar = 32.0f;

// exp_f32(-distance) for 0 <= distance <= kFar: the same operations but for the scale, which no product can round there.
__device__ __forceinline__ float exp_below(float distance) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float t = fmaf(-distance, 1.44269504f, magic);
  const float n = t - magic;
  float f = fmaf(n, -0.693359375f, -distance);
  f = fmaf(n, 2.12194440e-4f, f);
  float p = 1.0f / 5040;
  p = fmaf(p, f, 1.0f / 720);
  p = fmaf(p, f, 1.0f / 120);
  p = fmaf(p, f, 1.0f / 24);
  p = fmaf(p, f, 1.0f / 6);
  p = fmaf(p, f, 0.5f);
  p = fmaf(p, f * f, f) + 1.0f;
  return __uint_as_float(__float_as_uint(p) + (__float_as_uint(t) << 23));
}

// How far x is below the greatest logit; 0 for the greatest itself where it is infinite.
__device__ __forceinline__ float below(float x, float top) { return x == top ? 0.0f : top - x; }

// e^(x - top) in units of 2^-44, to the nearest integer; of an infinite top the tokens that share it have one whole each.
__device__ __forceinline__ uint64_t exponential_of(float x, float top) {
  const float under = below(x, top);
  return under > kFar ? 0 : __float2ull_rn(exp_below(under) * 17592186044416.0f);
}

// Weights e^-distance of tokens, where the distance is (top - x) / temperature.
struct Weights {
  float top, temperature;
  float lift;          // a power of 2 that brings the temperature to where quotients are exact
  float lifted;        // temperature * lift
  float reciprocal;    // 1 / lifted
  float reach;         // tokens farther below the top have no mass

  // The least normal number bounds the temperature from below.
  __device__ Weights(float greatest, float wanted) : top(greatest), temperature(fmaxf(wanted, FLT_MIN)) {
    lift = temperature < 0x1p-20f ? 0x1p100f : temperature > 0x1p100f ? 0x1p-60f : 1.0f;
    lifted = temperature * lift;
    reciprocal = __frcp_rn(lifted);
    reach = fminf(kFar * temperature, FLT_MAX);
  }

  // under / temperature, correctly rounded, for under <= reach: the reciprocal is, so that a quotient that is off by less
  // than a unit in its last place becomes the right one by its remainder, which is exact. Only quotients below 2^-80, which
  // weigh and bin like 0, may be off in their last place.
  __device__ __forceinline__ float distance(float under) const {
    under *= lift;
    float q = under * reciprocal;
    q = fmaf(fmaf(-lifted, q, under), reciprocal, q);
    return fmaf(fmaf(-lifted, q, under), reciprocal, q);
  }
};

// Units of 2^-40, to the nearest integer, ties to even: the product is exact.
__device__ __forceinline__ uint64_t in_units(float x) { return __float2ull_rn(x * 1099511627776.0f); }

// A token that has a mass.
struct Weighed {
  float distance, weight;
  uint64_t mass;
};

// Whether a token has a mass, which is then in w.
__device__ __forceinline__ bool weigh(const Weights& weights, float x, Weighed& w) {
  const float under = below(x, weights.top);
  if (under > weights.reach) return false;
  w.distance = weights.distance(under);
  w.weight = exp_below(w.distance);
  w.mass = in_units(w.weight);
  return w.mass != 0;
}

}  // namespace mr::cuda
