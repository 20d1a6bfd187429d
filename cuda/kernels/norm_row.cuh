// norm_row: the parts of a row's RMS norm, for the kernels of norm.cu and branch.cu and for GEMMs that norm their one token.
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

// Loads group i of a row of `dim`, zeros beyond it; `whole`: dim and the strides are multiples of 4.
template <bool whole>
__device__ __forceinline__ float4 load_group(const float* row, int32_t i, int32_t dim) {
  if constexpr (whole) return reinterpret_cast<const float4*>(row)[i];
  const int32_t d = i * 4;
  return make_float4(row[d], d + 1 < dim ? row[d + 1] : 0.0f, d + 2 < dim ? row[d + 2] : 0.0f,
                     d + 3 < dim ? row[d + 3] : 0.0f);
}

template <bool whole>
__device__ __forceinline__ void store_group(float* row, int32_t i, int32_t dim, float4 x) {
  if constexpr (whole) {
    reinterpret_cast<float4*>(row)[i] = x;
  } else {
    const float each[4] = {x.x, x.y, x.z, x.w};
    for (int k = 0; k < 4; ++k)
      if (i * 4 + k < dim) row[i * 4 + k] = each[k];
  }
}

template <class T>
__device__ __forceinline__ uint2 norm_pack(float4 x, float factor, float4 weight) {
  return make_uint2(ActOps<T>::pack(x.x * factor * weight.x, x.y * factor * weight.y),
                    ActOps<T>::pack(x.z * factor * weight.z, x.w * factor * weight.w));
}

// Writes x * factor * weight as group i of a row of an activation type.
template <bool whole>
__device__ __forceinline__ void store_normed(Act act, void* row, int32_t i, int32_t dim, float4 x, float factor, float4 weight) {
  const float y[4] = {x.x * factor * weight.x, x.y * factor * weight.y, x.z * factor * weight.z, x.w * factor * weight.w};
  if constexpr (whole) {
    static_cast<uint2*>(row)[i] = make_uint2(rounded_bits(act, y[0], y[1]), rounded_bits(act, y[2], y[3]));
  } else {
    for (int k = 0; k < 4; ++k)
      if (i * 4 + k < dim) static_cast<uint16_t*>(row)[i * 4 + k] = rounded_bits(act, y[k]);
  }
}

// Writes x * factor * weight as group i of a row.
template <class T, bool whole>
__device__ __forceinline__ void store_normed(T* row, int32_t i, int32_t dim, float4 x, float factor, float4 weight) {
  if constexpr (whole) {
    reinterpret_cast<uint2*>(row)[i] = norm_pack<T>(x, factor, weight);
  } else {
    const float y[4] = {x.x * factor * weight.x, x.y * factor * weight.y, x.z * factor * weight.z, x.w * factor * weight.w};
    for (int k = 0; k < 4; ++k)
      if (i * 4 + k < dim) row[i * 4 + k] = ActOps<T>::from(y[k]);
  }
}

}  // namespace mr::cuda
