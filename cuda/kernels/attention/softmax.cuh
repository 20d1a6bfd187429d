// attention/softmax: one row's running softmax, as the lanes of a fragment hold it.
#pragma once

#include "kernels/attention/merge.cuh"

namespace mr::cuda {

// ScoreRule is how a product of a query and a key becomes a score in powers of 2: product * scale_log2, or with a cap
// capped(product, cap_scale) * scale_log2.
struct ScoreRule {
  float scale_log2, cap_scale;
  ScoreRule(float scale, float cap)
      : scale_log2((cap > 0 ? cap : scale) * 1.44269504f), cap_scale(cap > 0 ? scale / cap : 0.0f) {}
};

// tanh(product * cap_scale), within 2^-22.
__device__ __forceinline__ float capped(float product, float cap_scale) {
  return 1.0f - 2.0f / (1.0f + exp2_approx(product * cap_scale * 2.88539008f));
}

// RowSoftmax is relative to the greatest score, in powers of 2.
struct RowSoftmax {
  float top;  // starts as -infinity
  float sum;  // of this lane's columns; starts as 0
};

// Reduces over the four lanes that share a row.
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

}  // namespace mr::cuda
