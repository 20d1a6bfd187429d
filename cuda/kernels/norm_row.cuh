// norm_row: the parts of a row's RMS norm, for the kernel of norm.cu and for GEMMs that norm their one token.
//
// A row is cut into groups of 4 dims; thread t has the groups t, t + threads, ... The number of threads depends on dim
// alone, and so does the order of the sum: a thread's groups, then lanes, then warps.
#pragma once

#include "kernels/act.cuh"

namespace mr::cuda {

constexpr int kNormKept = 4;  // groups that a thread keeps in registers

__host__ __device__ constexpr int32_t norm_warps(int32_t dim) {
  return ((dim + 3) / 4 + 32 * kNormKept - 1) / (32 * kNormKept) < 32 ? ((dim + 3) / 4 + 32 * kNormKept - 1) / (32 * kNormKept) : 32;
}

__device__ __forceinline__ float norm_square(float4 x, float sum) {
  return fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, fmaf(x.x, x.x, sum))));
}

// Returns the factor of a row, from the sum of its squares.
__device__ __forceinline__ float norm_factor(float sum, int32_t dim, float eps) {
  return 1.0f / sqrtf(sum / static_cast<float>(dim) + eps);
}

template <class T>
__device__ __forceinline__ uint2 norm_pack(float4 x, float factor, float4 weight) {
  return make_uint2(ActOps<T>::pack(x.x * factor * weight.x, x.y * factor * weight.y),
                    ActOps<T>::pack(x.z * factor * weight.z, x.w * factor * weight.w));
}

}  // namespace mr::cuda
