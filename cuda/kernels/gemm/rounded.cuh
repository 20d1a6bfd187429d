// rounded: A fragments of the activation type from a unit of packed weights, scaled in f32 and rounded once.
#pragma once

#include "kernels/gemm/fragment.cuh"

namespace mr::cuda {

// RoundedUnit makes A fragments of the activation type from one unit of a panel.
template <int32_t T, class A>
struct RoundedUnit {
  static constexpr bool same = (T == kF16 && std::is_same_v<A, __half>) || (T == kBF16 && std::is_same_v<A, __nv_bfloat16>);

  __device__ __forceinline__ static uint32_t pack(float low, float high) {
    if constexpr (std::is_same_v<A, __half>) return bits_of(__floats2half2_rn(low, high));
    else return bits_of(__floats2bfloat162_rn(low, high));
  }

  __device__ __forceinline__ static float2 floats(uint32_t pair) {
    if constexpr (std::is_same_v<A, __half>) return half_pair(pair);
    else return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  }

  template <int32_t step, class Quants, class Scales>
  __device__ __forceinline__ static void take(Quants& quants, const Scales& scales, uint32_t unit, int32_t lane, uint32_t (&a)[4]) {
    if constexpr (T == kF32) {
      const uint4 g = load_shared16(unit + (step * 2) * 512 + lane * 16), g8 = load_shared16(unit + (step * 2 + 1) * 512 + lane * 16);
      a[0] = pack(__uint_as_float(g.x), __uint_as_float(g.y));
      a[1] = pack(__uint_as_float(g8.x), __uint_as_float(g8.y));
      a[2] = pack(__uint_as_float(g.z), __uint_as_float(g.w));
      a[3] = pack(__uint_as_float(g8.z), __uint_as_float(g8.w));
    } else if constexpr (Format<T>::is_float) {
      const uint4 v = load_shared16(unit + step * 512 + lane * 16);
      const uint32_t r[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        if constexpr (same) {
          a[i] = r[i];
        } else if constexpr (T == kF16) {
          const float2 w = half_pair(r[i]);
          a[i] = pack(w.x, w.y);
        } else {
          a[i] = pack(__uint_as_float(r[i] << 16), __uint_as_float(r[i] & 0xffff0000u));
        }
      }
    } else {
      constexpr int32_t block = Format<T>::sixteens ? step : step / 2;
      uint32_t q[1][4];
      quants.template take<step>(q);
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const float2 w = floats(q[0][i]);
        const float scale = scales.scale[i & 1][block];
        if constexpr (Format<T>::has_min) {
          const float min = scales.min[i & 1][block];
          a[i] = pack(fmaf(scale, w.x, min), fmaf(scale, w.y, min));
        } else {
          a[i] = pack(scale * w.x, scale * w.y);
        }
      }
    }
  }
};

}  // namespace mr::cuda
