// sampler/weights: token masses as integers, whose sums are exact in any order, and the bins of their distances. The
// bits are those of the CPU engine. The computation is shorter, because no logit is above the greatest, and logits far
// below it have no mass.
#pragma once

#include <cfloat>

#include "kernels/sampler/pieces.cuh"

namespace mr::cuda {

// Beyond this distance e^-distance rounds to 0 in units of 2^-44.
constexpr float kFar = 32.0f;
constexpr float kMassless = 28.5f;  // tokens at this distance have no mass

// exp_f32(-distance) * 2^kLift for 0 <= distance <= kFar, by the same operations except for the scale: it is added to
// the exponent, and no product is subnormal there.
template <int kLift>
__device__ __forceinline__ float exp_below(float distance) {
  const float magic = 12582912.0f + kLift;  // 1.5 * 2^23 plus an even number: adding it rounds to an integer, ties to even
  static_assert(kLift % 2 == 0, "ties stay where they are");
  const float t = fmaf(-distance, 1.44269504f, magic);
  const float n = t - magic;
  float f = fmaf(n, -0.693359375f, -distance);
  f = fmaf(n, 2.12194440e-4f, f);
  const float p = exp_reduced(f);
  return __uint_as_float(__float_as_uint(p) + (__float_as_uint(t) << 23));
}

// Returns how far x is below the greatest logit; 0 for the greatest itself even if it is infinite, where the difference
// is NaN.
__device__ __forceinline__ float below(float x, float top) { return fmaxf(top - x, 0.0f); }

// e^(x - top) in units of 2^-44, to the nearest integer; if the top is infinite, each token that shares it counts as 1.
__device__ __forceinline__ uint64_t exponential_of(float under) { return __float2ull_rn(exp_below<44>(fminf(under, kFar))); }

// Weights e^-distance of tokens, where the distance is (top - x) / temperature.
struct Weights {
  float top, temperature;
  float lift;             // a power of 2 that moves the temperature to where quotients are exact
  float lifted;           // temperature * lift
  float reciprocal, rest;  // 1 / lifted, and its rounding error

  // The temperature is at least the smallest normal number.
  __device__ Weights(float greatest, float wanted) : top(greatest), temperature(fmaxf(wanted, FLT_MIN)) {
    lift = temperature < 0x1p-20f ? 0x1p100f : temperature > 0x1p60f ? 0x1p-60f : 1.0f;
    lifted = temperature * lift;
    reciprocal = __frcp_rn(lifted);
    rest = fmaf(-lifted, reciprocal, 1.0f) * reciprocal;
  }

  // Returns under / temperature, correctly rounded, but at most kFar. The first quotient has an error below one unit in
  // the last place, and its remainder, which is exact, corrects it. Only quotients below 2^-80, which have the mass and
  // bin of 0, may be off in the last place. A quotient that overflows is NaN until the bound is applied.
  __device__ __forceinline__ float distance(float under) const {
    under *= lift;
    const float q = fmaf(under, reciprocal, under * rest);
    return fminf(fmaf(fmaf(-lifted, q, under), reciprocal, q), kFar);
  }
};

// In units of 2^-40: the weight, exact, and the mass, the nearest integer to it, ties to even.
__device__ __forceinline__ float weight_at(float distance) { return exp_below<40>(distance); }
__device__ __forceinline__ uint64_t mass_of(float weight) { return __float2ull_rn(weight); }
constexpr float kWeightUnit = 0x1p40f;

// mass * distance in units of 2^-46: the product is computed as two floats, each rounded to an integer.
__device__ __forceinline__ uint64_t surprise_of(float weight, float distance) {
  const float mass = weight < 0x1p23f ? weight + 0x1p23f - 0x1p23f : weight;  // an exact integer
  const float scaled = distance * 64.0f, high = mass * scaled, low = fmaf(mass, scaled, -high);
  return __float2ull_rn(high) + static_cast<uint64_t>(__float2ll_rn(low));
}

// ceil(fraction * total), at least 1, at most total.
__device__ __forceinline__ uint64_t share(double fraction, uint64_t total) {
  const double wanted = ceil(fraction * static_cast<double>(total));
  if (wanted >= static_cast<double>(total)) return total;
  return wanted < 1 ? 1 : static_cast<uint64_t>(wanted);
}

// Bins of distances. Tokens with greater logits have lower bins.
struct Bins {
  float scale;
  float most;  // greatest distance of a token with a mass

  // The scale is bounded so that quotients that have the mass of 0 also have its bin.
  __device__ Bins(const Weights& w, float least)
      : most(fminf(w.distance(below(least, w.top)), kMassless)) {
    scale = fminf(static_cast<float>(kBins - 1) / most, 1e18f);
  }
  // The nearest integer to distance * scale, at most kBins - 1.
  __device__ __forceinline__ uint32_t bin(float distance) const {
    constexpr float magic = 12582912.0f;
    return __float_as_uint(fminf(fmaf(distance, scale, magic), magic + (kBins - 1))) - 0x4b400000u;
  }
};

}  // namespace mr::cuda
