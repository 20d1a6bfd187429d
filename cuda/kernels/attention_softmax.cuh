// attention_softmax: one row's softmax over keys seen so far, as the lanes of a fragment keep it.
#pragma once

#include "kernels/attention_merge.cuh"

namespace mr::cuda {

// Relative to the greatest score, in powers of 2.
struct RowSoftmax {
  float top;  // begins as -infinity
  float sum;  // of this lane's columns; begins as 0
};

// The same in the four lanes that share a row.
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

}  // namespace mr::cuda
