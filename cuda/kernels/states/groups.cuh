// groups: four neighbouring columns of a row at once, for the kernels of this folder.
#pragma once

#include "kernels/act.cuh"

namespace mr::cuda {

__device__ __forceinline__ float4 product(float4 a, float4 b) { return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w}; }
__device__ __forceinline__ float4 product(float4 a, float b) { return product(a, float4{b, b, b, b}); }
__device__ __forceinline__ float4 multiply_add(float4 a, float4 b, float4 c) {
  return {fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y), fmaf(a.z, b.z, c.z), fmaf(a.w, b.w, c.w)};
}

// Loads the first n of four columns, and zeros for the others. whole: n is 0 or at least 4, and the address is a multiple of 16.
template <bool whole>
__device__ __forceinline__ float4 load_columns(const float* from, int32_t n) {
  if constexpr (whole) return n > 0 ? *reinterpret_cast<const float4*>(from) : float4{};
  return {n > 0 ? from[0] : 0.0f, n > 1 ? from[1] : 0.0f, n > 2 ? from[2] : 0.0f, n > 3 ? from[3] : 0.0f};
}

// store_group stores four columns by one instruction. nvcc 12.4 makes four stores of 4 bytes of some assignments of a float4: each of them
// sends every sector that the warp touches to L2, so L2 receives four times as many writes.
__device__ __forceinline__ void store_group(float4* to, float4 x) { __stcg(to, x); }

template <bool whole>
__device__ __forceinline__ void store_columns(float* to, int32_t n, float4 x) {
  if constexpr (whole) {
    if (n > 0) store_group(reinterpret_cast<float4*>(to), x);
  } else {
    const float each[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int32_t i = 0; i < 4; ++i)
      if (i < n) to[i] = each[i];
  }
}

// Stores columns of an activation type, saturated if that is f16. whole: the address is a multiple of 8.
template <bool whole>
__device__ __forceinline__ void store_columns(Act act, uint16_t* to, int32_t n, float4 x) {
  if constexpr (whole) {
    if (n > 0) *reinterpret_cast<uint2*>(to) = make_uint2(act_bits(act, x.x, x.y), act_bits(act, x.z, x.w));
  } else {
    const float each[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int32_t i = 0; i < 4; ++i)
      if (i < n) to[i] = act_bits(act, each[i]);
  }
}

inline bool aligned(const void* p, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

}  // namespace mr::cuda
