// search_exact: Q in binary64, in the order that docs/decisions/029-vector-numerics.md states.
#pragma once

#include "kernels/vectors/search_element.cuh"

namespace mr::cuda {

// Q of a row and a codeword, by eight aligned lanes: lane i of them has partial sum i. All lanes of the warp call; all eight get
// it. `element(j)` is column j of the row as a float.
template <class F>
__device__ __forceinline__ double octet_distance(const F& element, const float* codeword, int64_t width, bool inner) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 8;
  double sum = 0;
#pragma unroll 8
  for (int64_t j = lane; j < width; j += 8) {
    const double x = static_cast<double>(element(j)), c = static_cast<double>(codeword[j]);
    if (inner) {
      sum = __dadd_rn(sum, __dmul_rn(x, c));
    } else {
      const double t = __dsub_rn(x, c);
      sum = __dadd_rn(sum, __dmul_rn(t, t));
    }
  }
#pragma unroll
  for (int32_t half = 4; half > 0; half /= 2) {
    const double other = __shfl_down_sync(0xffffffffu, sum, half, 8);
    if (lane < half) sum = __dadd_rn(sum, other);
  }
  sum = __shfl_sync(0xffffffffu, sum, 0, 8);
  return inner ? -sum : sum;
}

}  // namespace mr::cuda
