// search_exact: computes Q in binary64, in the order that docs/decisions/029-vector-numerics.md specifies.
#pragma once

#include "kernels/vectors/search_element.cuh"

namespace mr::cuda {

// Loads every eighth column of a row from j on; columns from `width` on are zeros.
template <int32_t type>
__device__ __forceinline__ void load_eight(const void* rows, int64_t offset, int64_t j, int64_t width, float (&x)[8]) {
#pragma unroll
  for (int32_t i = 0; i < 8; ++i) x[i] = j + 8 * i < width ? load_element<type>(rows, offset + j + 8 * i) : 0.0f;
}
// One branch for all eight, so that their loads are issued together.
__device__ __forceinline__ void load_eight(const void* rows, int32_t type, int64_t offset, int64_t j, int64_t width, float (&x)[8]) {
  switch (type) {
    case MR_VECTOR_F32: load_eight<MR_VECTOR_F32>(rows, offset, j, width, x); break;
    case MR_VECTOR_F16: load_eight<MR_VECTOR_F16>(rows, offset, j, width, x); break;
    case MR_VECTOR_BF16: load_eight<MR_VECTOR_BF16>(rows, offset, j, width, x); break;
    case MR_VECTOR_U8: load_eight<MR_VECTOR_U8>(rows, offset, j, width, x); break;
    default: load_eight<MR_VECTOR_I8>(rows, offset, j, width, x); break;
  }
}

// Computes Q of a row and a codeword with eight aligned lanes: lane i of them has partial sum i. All lanes of the warp
// must call it; all eight get the result. eight(j, x) is load_eight of the row.
template <class F>
__device__ __forceinline__ double octet_distance(const F& eight, const float* codeword, int64_t width, bool inner) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 8;
  double sum = 0;
#pragma unroll 1
  for (int64_t j = lane; j < width; j += 64) {
    float xs[8], cs[8];
    eight(j, xs);
    load_eight<MR_VECTOR_F32>(codeword, 0, j, width, cs);
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) {
      if (j + 8 * i >= width) break;
      const double x = static_cast<double>(xs[i]), c = static_cast<double>(cs[i]);
      if (inner) {
        sum = __dadd_rn(sum, __dmul_rn(x, c));
      } else {
        const double t = __dsub_rn(x, c);
        sum = __dadd_rn(sum, __dmul_rn(t, t));
      }
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
