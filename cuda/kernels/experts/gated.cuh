// gated: the product of an MLP's activated gate and its up projection, for every activation of millrace/model.h.
#pragma once

#include <cstdint>

#include "kernels/gemm/activation.cuh"
#include "millrace/engine.h"

namespace mr::cuda {

// Returns x bounded by `most` and, if it is not one-sided, by -most. NaN stays.
__device__ __forceinline__ float clamped(float x, float most, bool one_sided) {
  if (x > most) return most;
  return !one_sided && x < -most ? -most : x;
}

__device__ __forceinline__ float gated_product(int32_t activation, float gate, float up) {
  if (activation == MR_ACT_CLAMPED) {
    const float y = clamped(gate, 7.0f, true);
    return y / (1.0f + expf(-1.702f * y)) * (1.0f + clamped(up, 7.0f, false));
  }
  const float u = activation == MR_ACT_GELU_TANH ? gelu_argument(gate) : gate;
  return gate / (1.0f + expf(-u)) * up;
}

// Replaces each gate by its gated_product, with the same bits. Their divisions overlap (activate_each).
template <int32_t n>
__device__ __forceinline__ void gated_products(int32_t activation, float (&gate)[n], const float (&up)[n]) {
  float u[n], factor[n];
  if (activation == MR_ACT_CLAMPED) {
#pragma unroll
    for (int32_t i = 0; i < n; ++i) {
      gate[i] = clamped(gate[i], 7.0f, true);
      u[i] = 1.702f * gate[i];
      factor[i] = 1.0f + clamped(up[i], 7.0f, false);
    }
  } else {
    const bool gelu = activation == MR_ACT_GELU_TANH;
#pragma unroll
    for (int32_t i = 0; i < n; ++i) {
      u[i] = gelu ? gelu_argument(gate[i]) : gate[i];
      factor[i] = up[i];
    }
  }
  activate_each(gate, u);
#pragma unroll
  for (int32_t i = 0; i < n; ++i) gate[i] *= factor[i];
}

}  // namespace mr::cuda
