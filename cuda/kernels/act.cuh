// act: conversions between f32 and the activation types, and sums over warps and blocks in a fixed order.
#pragma once

#include <cmath>

#include "kernels/types.h"

namespace mr::cuda {

// Returns a query, key or value as f16 stores it: a finite number beyond the range becomes the largest stored one. That
// is below f16's 65 504, so that means of values, whose weights are rounded, stay finite. Infinity and NaN are kept,
// because they show that something went wrong before.
__device__ __forceinline__ float within_f16(float x) {
  constexpr float kLargest = 64992.0f;
  const float size = fabsf(x);
  return size > kLargest && size < INFINITY ? copysignf(kLargest, x) : x;
}

template <class T>
struct ActOps;

template <>
struct ActOps<__half> {
  typedef __half2 Pair;
  static __device__ __forceinline__ __half from(float x) { return __float2half_rn(x); }
  static __device__ __forceinline__ float to(__half x) { return __half2float(x); }
  // Bounds x to the range of the type.
  static __device__ __forceinline__ float bounded(float x) { return within_f16(x); }
  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
};

template <>
struct ActOps<__nv_bfloat16> {
  typedef __nv_bfloat162 Pair;
  static __device__ __forceinline__ __nv_bfloat16 from(float x) { return __float2bfloat16_rn(x); }
  static __device__ __forceinline__ float to(__nv_bfloat16 x) { return __bfloat162float(x); }
  static __device__ __forceinline__ float bounded(float x) { return x; }
  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
};

// Returns the bits of one element, or of two, of a type that is known only at run time. A finite number beyond f16's range is
// saturated. Both types are rounded to and one is selected, because a branch for each element would cost registers.
__device__ __forceinline__ uint16_t act_bits(Act act, float x) {
  const __half f16 = ActOps<__half>::from(ActOps<__half>::bounded(x));
  const __nv_bfloat16 bf16 = ActOps<__nv_bfloat16>::from(x);
  return act == Act::kF16 ? __half_as_ushort(f16) : __bfloat16_as_ushort(bf16);
}
__device__ __forceinline__ uint32_t act_bits(Act act, float low, float high) {
  const uint32_t f16 = ActOps<__half>::pack(ActOps<__half>::bounded(low), ActOps<__half>::bounded(high)), bf16 = ActOps<__nv_bfloat16>::pack(low, high);
  return act == Act::kF16 ? f16 : bf16;
}

// The same without saturation: a finite number beyond the range becomes infinity.
__device__ __forceinline__ uint16_t rounded_bits(Act act, float x) {
  const __half f16 = ActOps<__half>::from(x);
  const __nv_bfloat16 bf16 = ActOps<__nv_bfloat16>::from(x);
  return act == Act::kF16 ? __half_as_ushort(f16) : __bfloat16_as_ushort(bf16);
}
__device__ __forceinline__ uint32_t rounded_bits(Act act, float low, float high) {
  const uint32_t f16 = ActOps<__half>::pack(low, high), bf16 = ActOps<__nv_bfloat16>::pack(low, high);
  return act == Act::kF16 ? f16 : bf16;
}

// Returns the element of a type that is known only at run time.
__device__ __forceinline__ float act_f32(Act act, uint16_t bits) {
  const float f16 = ActOps<__half>::to(__ushort_as_half(bits)), bf16 = ActOps<__nv_bfloat16>::to(__ushort_as_bfloat16(bits));
  return act == Act::kF16 ? f16 : bf16;
}

// Sums over a warp; every lane gets the result. The order is fixed: partner lanes at distance 16, 8, 4, 2, 1.
__device__ __forceinline__ float warp_sum(float x) {
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
  return x;
}

// Sums over the block; every thread gets the result. Warps are added in ascending order. scratch: one float for each
// warp. The block synchronises twice; afterwards scratch may be reused.
__device__ __forceinline__ float block_sum(float x, float* scratch) {
  const int warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) scratch[warp] = x;
  __syncthreads();
  float sum = scratch[0];
  for (int w = 1; w < warps; ++w) sum += scratch[w];
  __syncthreads();
  return sum;
}

}  // namespace mr::cuda
