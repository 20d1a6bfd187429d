// attention/merge: merges the partial results of two ranges of a row's keys. Every attention kernel merges by these
// functions alone.
#pragma once

#include "kernels/math.cuh"

namespace mr::cuda {

// Part is a softmax over some keys of one row and query head: the greatest score (log2) and the sum of weights relative
// to it.
struct Part {
  float top, sum;
};

// Merges `next`, whose keys follow those of `into`, into it. Returns the factors of the weighted values so far, and of
// those of `next`. Both must have seen at least one key.
__device__ __forceinline__ float2 merge(Part& into, const Part& next) {
  const float top = fmaxf(into.top, next.top);
  const float2 shares = make_float2(exp2_approx(into.top - top), exp2_approx(next.top - top));
  into.sum = fmaf(next.sum, shares.y, into.sum * shares.x);
  into.top = top;
  return shares;
}
__device__ __forceinline__ float merge_values(float into, float next, float2 shares) {
  return fmaf(next, shares.y, into * shares.x);
}

}  // namespace mr::cuda
