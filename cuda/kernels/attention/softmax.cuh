// attention/softmax: one row's running softmax, as the lanes of a fragment hold it.
#pragma once

#include "kernels/attention/merge.cuh"

namespace mr::cuda {

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
