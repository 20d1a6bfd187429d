// attention/merge: merges the partial results of two ranges of a row's keys. Every attention kernel merges by these
// functions alone.
#pragma once

#include <cmath>

#include "kernels/math.cuh"

namespace mr::cuda {

// Part is a softmax over some keys of one row and query head: the greatest score (log2) and the sum of weights relative
// to it.
struct Part {
  float top, sum;
};

// Returns what scores are relative to. A row that has seen no key has top -infinity, and its weights are 0 and not NaN.
__device__ __forceinline__ float base_of(float top) { return top == -INFINITY ? 0.0f : top; }

// Merges `next`, whose keys follow those of `into`, into it. Returns the factors of the weighted values so far, and of
// those of `next`. A Part that has seen no key (top -infinity, sum 0) changes no bit of the other.
__device__ __forceinline__ float2 merge(Part& into, const Part& next) {
  const float top = fmaxf(into.top, next.top), base = base_of(top);
  const float2 shares = make_float2(exp2_approx(into.top - base), exp2_approx(next.top - base));
  into.sum = fmaf(next.sum, shares.y, into.sum * shares.x);
  into.top = top;
  return shares;
}
__device__ __forceinline__ float merge_values(float into, float next, float2 shares) {
  return fmaf(next, shares.y, into * shares.x);
}

// Adds a sink, the score `sinks[head]` whose value is 0, to the merged keys of a row. Sinks come last, after all keys, in
// every kernel. Returns the factor of the weighted values so far. Without sinks nothing changes.
__device__ __forceinline__ float add_sink(Part& total, const float* sinks, int64_t head) {
  if (sinks == nullptr) return 1.0f;
  return merge(total, Part{sinks[head] * 1.44269504f, 1.0f}).x;
}

}  // namespace mr::cuda
