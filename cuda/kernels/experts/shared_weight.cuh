// shared_weight: the weight of a row's shared expert, sigmoid(router . norm of x). Thread t has the elements t, t + threads, ... The number
// of threads depends on the width alone, and so does the order of a sum over a row: a thread's elements, then lanes, then warps.
#pragma once

#include "kernels/act.cuh"
#include "kernels/math.cuh"
#include "kernels/norm_row.cuh"

namespace mr::cuda {

constexpr int32_t kMostWeightThreads = 512;

// Threads that compute the weight of a row. A block may have more, which add zeros.
__host__ __device__ constexpr int32_t weight_threads(int32_t dim) {
  return (dim + 31) / 32 * 32 < kMostWeightThreads ? (dim + 31) / 32 * 32 : kMostWeightThreads;
}

// Returns the weight in every thread of the block. norm may be null. scratch: one float for each warp.
__device__ __forceinline__ float shared_weight(const float* x, const float* norm, const float* router, int32_t dim, float eps,
                                               float* scratch) {
  constexpr int32_t kCount = 4;  // elements that a thread requests at once
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = weight_threads(dim);
  float dot = 0, squares = 0;
  for (int32_t first = thread < threads ? thread : dim; first < dim; first += kCount * threads) {
    float v[kCount], scale[kCount], weight[kCount];
#pragma unroll
    for (int32_t k = 0; k < kCount; ++k) {  // instead of elements beyond the row its last is loaded
      const int32_t at = min(first + k * threads, dim - 1);
      v[k] = __ldcg(x + at);
      scale[k] = norm == nullptr ? 1.0f : __ldcg(norm + at);
      weight[k] = __ldcg(router + at);
    }
#pragma unroll
    for (int32_t k = 0; k < kCount; ++k) {
      if (first + k * threads >= dim) continue;
      squares = fmaf(v[k], v[k], squares);
      dot = fmaf(norm == nullptr ? v[k] : v[k] * scale[k], weight[k], dot);
    }
  }
  const float factor = norm == nullptr ? 1.0f : norm_factor(block_sum(squares, scratch), dim, eps);
  return 1.0f / (1.0f + exp_f32(-(block_sum(dot, scratch) * factor)));
}

}  // namespace mr::cuda
